"""A TCP proxy for tests, in front of a server on this machine: it cuts connections, and can refuse them for a while."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_RESET = struct.pack("ii", 1, 0)
"""With it, closing a socket is a reset: data in flight are lost, in both directions."""
_PIECE = 65_536


class CuttingProxy:
    def __init__(self, host: str, port: int) -> None:
        """A host that is a directory is that of PostgreSQL's socket."""
        self._target = (host, port)
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_away = False
        self.losing = 0
        """This many answers are lost: the server executes the request, and the connection is cut."""
        self.losing_after: tuple[bytes, int] | None = None
        """An answer with these bytes is lost, after this many that are forwarded; then nothing until `back`."""
        self.answer: tuple[bytes, bytes] | None = None
        """The beginning of a request that is not forwarded, and the proxy's answer to it."""
        self.speaks = threading.Event()
        """While it is not set, nothing is forwarded, and no connection is closed."""
        self.speaks.set()
        self.silent_after: bytes | None = None
        """The proxy stops forwarding at a request with these bytes."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Cut all connections, and return their number. Clients may reconnect at once."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                _reset(each)
        return len(pairs)

    @contextmanager
    def away(self) -> Iterator[None]:
        """From now on cut every connection at once."""
        self._is_away = True
        self.cut()
        try:
            yield
        finally:
            self._is_away = False

    def back(self) -> None:
        """Forward connections again."""
        self.answer, self._is_away = None, False

    def close(self) -> None:
        self.speaks.set()
        _reset(self._listening)
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                came, _ = self._listening.accept()
            except OSError:
                return
            try:
                there = self._connected()
            except OSError:
                _reset(came)
                continue
            with self._lock:
                self._pairs.append((came, there))
            if self._is_away:
                self.cut()
            for source, target in ((came, there), (there, came)):
                threading.Thread(target=self._carry, args=(source, target, source is there), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if not is_answer and self.silent_after and self.silent_after in piece:
                    self.silent_after = None
                    self.speaks.clear()
                self.speaks.wait()
                if is_answer and self._loses(piece):
                    break
                if not is_answer and self.answer and piece.startswith(self.answer[0]):
                    source.sendall(self.answer[1])
                    source.shutdown(socket.SHUT_WR)
                    while source.recv(_PIECE):
                        pass
                    break
                target.sendall(piece)
        _reset(source)
        _reset(target)

    def _connected(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection(self._target)
        there = socket.socket(socket.AF_UNIX)
        there.connect(f"{host}/.s.PGSQL.{port}")
        return there

    def _loses(self, piece: bytes) -> bool:
        with self._lock:
            if self.losing_after is not None and self.losing_after[0] in piece:
                sign, left = self.losing_after
                self.losing_after = (sign, left - 1) if left else None
                self._is_away = left == 0
                if self._is_away:
                    return True
            is_so = self.losing > 0
            self.losing -= is_so
            return is_so


def _reset(each: socket.socket) -> None:
    with suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
    each.close()


@contextmanager
def cutting_proxy(host: str, port: int) -> Iterator[CuttingProxy]:
    made = CuttingProxy(host, port)
    try:
        yield made
    finally:
        made.close()
