"""A way to a server that can be cut and blocked: TCP on loopback, threads of its own."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards connections to a port of this machine, from its making to `close()`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """End every connection; new ones are let through."""
        with self._lock:
            ends = list(self._open)
        for end in ends:
            _shut(end)

    def hang(self) -> None:
        """Take connections and what is said on them, and pass nothing on."""
        self._flows.clear()

    def resume(self) -> None:
        """End the hang: what was said meanwhile arrives."""
        self._flows.set()

    def close(self) -> None:
        """End all connections and threads."""
        _shut(self._listener)
        self._listener.close()
        self.resume()
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            pair = _Pair(client, server)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for source, sink in ((client, server), (server, client)):
                pump = threading.Thread(
                    target=self._pump, args=(pair, source, sink), name="proxy", daemon=True
                )
                self._threads.append(pump)
                pump.start()

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while said := source.recv(65536):
                self._flows.wait()
                sink.sendall(said)
        self._flows.wait()
        _shut(pair.client)
        _shut(pair.server)
        if pair.ends_last():
            with self._lock:
                self._open -= {pair.client, pair.server}
            pair.client.close()
            pair.server.close()


class _Pair:
    """The two ends of one connection, which the last of its two pumps closes."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self._left = 2
        self._lock = threading.Lock()

    def ends_last(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
