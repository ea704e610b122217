"""`Tls`: the server's certificate and key, and optionally the authority that signs the certificates of clients.

The files are read when the server is created, before the pipeline opens, so that errors show at once. A changed file
takes effect at the next start. The server accepts TLS 1.2 or newer.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from evertide.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Path
    """PEM: the certificate, followed by the intermediate certificates."""
    key: Path
    client_authority: Path | None = None
    """None: clients need no certificate."""

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None, client_authority: Path | None) -> Tls | None:
        """From command line options; None if none is set."""
        if certificate is None and key is None and client_authority is None:
            return None
        if certificate is None or key is None:
            why = "both are needed; --tls-client-ca needs both as well"
            raise InvalidInput(where="--tls-cert, --tls-key", why=why)
        return cls(certificate, key, client_authority)

    def context(self) -> ssl.SSLContext:
        """Raise `InvalidInput` for a file that cannot be used."""
        for option, path in (("cert", self.certificate), ("key", self.key), ("client-ca", self.client_authority)):
            if path is not None:
                _check_readable(option, path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
        except ssl.SSLError as error:
            where = f"--tls-cert {str(self.certificate)!r}, --tls-key {str(self.key)!r}"
            raise InvalidInput(where=where, why=_explain(error)) from error
        except InvalidInput as error:
            raise InvalidInput(where=f"--tls-key {str(self.key)!r}", why=error.why) from None
        if self.client_authority is not None:
            try:
                context.load_verify_locations(self.client_authority)
            except ssl.SSLError as error:
                where = f"--tls-client-ca {str(self.client_authority)!r}"
                raise InvalidInput(where=where, why="the file contains no PEM certificate") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _refuse_password() -> str:
    """Called for an encrypted key. Without it, OpenSSL would prompt at the terminal."""
    raise InvalidInput(where="key", why="the key is encrypted; decrypt it with `openssl pkey -in KEY -out PLAIN`")


def _check_readable(option: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        why = f"cannot read the file: {error.strerror}"
        raise InvalidInput(where=f"--tls-{option} {str(path)!r}", why=why) from error


def _explain(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    return f"expected a certificate and its key in PEM: {error.reason or error.strerror}"
