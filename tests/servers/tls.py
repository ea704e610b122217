"""TLS in front of a PostgreSQL that was built without it, as the one for tests is.

A client requests TLS before it sends anything else; from then on, it talks only to the holder of the certificate. So
the client's side is the real one: libpq, its handshake, and its verification.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_SSL = 80877103
_GSS = 80877104
"""The code of a request for TLS, in place of a protocol version."""


@dataclass(frozen=True)
class Certificate:
    certificate: Path
    """It is its own certificate authority."""
    key: Path


def make_certificate(directory: Path, host: str) -> Certificate | None:
    """A certificate for a host name; None if there is no `openssl` to create it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    made = Certificate(directory / f"{host}.crt", directory / f"{host}.key")
    names = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    out: list[str | Path] = ["-keyout", made.key, "-out", made.certificate]
    command: list[str | Path] = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *out]
    subprocess.run(command, check=True, capture_output=True)
    return made


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def tls_front(port: int, certificate: Certificate) -> Iterator[int]:
    """The port of a TLS proxy for a server on a loopback port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_serve, args=(client, context, port), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def _serve(client: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with suppress(OSError, struct.error), client:  # a client that does not trust the certificate disconnects
        while (asked := struct.unpack(">II", client.recv(8, socket.MSG_WAITALL))[1]) == _GSS:
            client.sendall(b"N")
        if asked != _SSL:
            return
        client.sendall(b"S")
        with (
            context.wrap_socket(client, server_side=True) as secure,
            socket.create_connection(("127.0.0.1", port)) as to,
        ):
            back = threading.Thread(target=_pump, args=(to, secure), daemon=True)
            back.start()
            _pump(secure, to)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR if not isinstance(target, ssl.SSLSocket) else socket.SHUT_RDWR)
