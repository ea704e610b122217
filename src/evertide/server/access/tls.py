"""`Tls`: a certificate and its key; and, if clients must have one as well, whose certificates are believed.

Read when the server is made, long before there is a pipeline: what is wrong with the files is said at once. TLS is 1.2
or newer. Files that change are read at the next start.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from evertide.errors import InvalidInput

__all__ = ["Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Path
    """PEM, with those between it and the authority behind it."""
    key: Path
    client_authority: Path | None = None
    """None: clients need no certificate."""

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None, client_authority: Path | None) -> Tls | None:
        """As options have it; None if none is given."""
        if certificate is None and key is None and client_authority is None:
            return None
        if certificate is None or key is None:
            raise InvalidInput(where="TLS", why="--tls-cert and --tls-key belong together; --tls-client-ca needs both")
        return cls(certificate, key, client_authority)

    def context(self) -> ssl.SSLContext:
        """`InvalidInput` names the file that cannot be used, and why."""
        for option, path in (("cert", self.certificate), ("key", self.key), ("client-ca", self.client_authority)):
            if path is not None:
                _check_readable(option, path)
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            made.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            where = f"--tls-cert {str(self.certificate)!r}, --tls-key {str(self.key)!r}"
            raise InvalidInput(where=where, why=_why(error)) from error
        except InvalidInput as error:
            raise InvalidInput(where=f"--tls-key {str(self.key)!r}", why=error.why) from None
        if self.client_authority is not None:
            try:
                made.load_verify_locations(self.client_authority)
            except ssl.SSLError as error:
                where = f"--tls-client-ca {str(self.client_authority)!r}"
                raise InvalidInput(where=where, why="it holds no certificate in PEM") from error
            made.verify_mode = ssl.CERT_REQUIRED
        return made


def _no_password() -> str:
    """OpenSSL would ask whoever sits at the terminal."""
    raise InvalidInput(where="key", why="it is encrypted: `openssl pkey -in KEY -out PLAIN` makes a plain one")


def _check_readable(option: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InvalidInput(where=f"--tls-{option} {str(path)!r}", why=f"it cannot be read: {error.strerror}") from error


def _why(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    return f"they are no certificate and its key, in PEM: {error.reason or error.strerror}"
