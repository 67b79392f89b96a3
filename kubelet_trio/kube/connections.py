"""The connections to an API server.

Requests share connections: over TLS, with HTTP/2 if the server supports it. Each watch has an
HTTP/1.1 connection of its own, because httpcore closes a response on HTTP/2 without RST_STREAM: the
server would go on sending for ever. Closing the connection ends the watch.

Shared connections with one set of certificates are a `SharedPool`. It retires when the credentials
change, or when a request on it got no answer (the connection may then be broken): requests in
flight complete on it, new ones open the next pool. Watches have no natural end, so they are ended
when the credentials change, as in client-go.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore2
import trio

from kubelet_trio.kube.credentials import Credentials, Material, make_context
from kubelet_trio.kube.kubeconfig import ClientConfig
from kubelet_trio.model import Offload, Purpose, thread_offload

_CLOSE = 5.0  # seconds that closing may take
_IDLE = 90.0  # seconds that an idle connection is kept: Go's IdleConnTimeout
# A peer that disappears without FIN or RST is noticed after a minute, even without traffic.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
Network = httpcore2.AsyncNetworkBackend | None  # None is the real one


class SharedPool:
    """The shared connections with one set of certificates. Making one blocks."""

    def __init__(
        self, config: ClientConfig, material: Material, *, http2: bool, network: Network = None
    ) -> None:
        self.material = material
        self.http2 = http2  # offered
        self.retired = False
        self.users = 0
        # A context for each: the library sets the protocols that it offers (ALPN) on it.
        self.pool = _pool(config, make_context(config, material), network, http2=http2)
        self.watch_context = make_context(config, material)

    async def close(self) -> None:
        """Close all connections."""
        with trio.move_on_after(_CLOSE, shield=True):
            await self.pool.aclose()


class WatchConnection:
    """The connection of one watch."""

    def __init__(self, pool: httpcore2.AsyncConnectionPool, material: Material) -> None:
        self.pool = pool
        self.material = material
        self._is_outdated = False
        self._wait: trio.CancelScope | None = None

    def outdate(self) -> None:
        """End the watch: its credentials have been replaced."""
        self._is_outdated = True
        if self._wait is not None:
            self._wait.cancel()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[trio.CancelScope]:
        """Wait for the next event in the block; `outdate` cancels the yielded scope."""
        with trio.CancelScope() as scope:
            if self._is_outdated:
                scope.cancel()
            self._wait = scope
            try:
                yield scope
            finally:
                self._wait = None


class Connections:
    """The current shared pool, those that retire, and the watches' connections.

    Call `close` at the end.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        http2: bool = True,
        offload: Offload = thread_offload.of(Purpose.CERTIFICATES),
        network: Network = None,
    ) -> None:
        self.credentials = credentials
        self._http2 = http2
        self._offload = offload
        self._network = network
        self._lock = trio.Lock()
        self._shared: SharedPool | None = None
        self._pools: list[SharedPool] = []  # `_shared` too
        self._watches: set[WatchConnection] = set()

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[SharedPool]:
        """Use the current shared pool, with fresh credentials.

        Raises:
            CredentialsError: there are none.
        """
        await self.credentials.refresh()
        shared = await self._current()
        shared.users += 1
        try:
            yield shared
        finally:
            shared.users -= 1
            # Shielded: the last user of a retired pool closes it, also when cancelled.
            with trio.move_on_after(_CLOSE, shield=True):
                await self._close_unused()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[WatchConnection]:
        """Open a connection for one watch; it is closed with the block.

        Raises:
            CredentialsError: there are none.
        """
        await self.credentials.refresh()
        shared = await self._current()
        pool = _pool(self.credentials.config, shared.watch_context, self._network, http2=False)
        connection = WatchConnection(pool, shared.material)
        self._watches.add(connection)
        try:
            yield connection
        finally:
            self._watches.discard(connection)
            with trio.move_on_after(_CLOSE, shield=True):
                await pool.aclose()

    def retire(self, shared: SharedPool) -> None:
        """Send no new request through a pool."""
        shared.retired = True
        if self._shared is shared:
            self._shared = None

    async def close(self) -> None:
        """Close everything, requests in flight included."""
        pools, self._pools, self._shared = self._pools, [], None
        for shared in pools:
            await shared.close()

    async def _current(self) -> SharedPool:
        # One task makes a new pool; the others wait for it.
        async with self._lock:
            material = self.credentials.material
            assert material is not None  # `refresh` has run
            if self._shared is not None and self._shared.material != material:
                self.retire(self._shared)
            for watch in self._watches:
                if watch.material != material:
                    watch.outdate()
            if self._shared is None:
                self._shared = await self._offload(
                    SharedPool,
                    self.credentials.config,
                    material,
                    http2=self._http2,
                    network=self._network,
                )
                self._pools.append(self._shared)
            shared = self._shared
        await self._close_unused()
        return shared

    async def _close_unused(self) -> None:
        """Close the retired pools that have no request in flight."""
        done = [shared for shared in self._pools if shared.retired and not shared.users]
        self._pools = [shared for shared in self._pools if shared not in done]
        for shared in done:
            await shared.close()


def _pool(
    config: ClientConfig, context: ssl.SSLContext, network: Network, *, http2: bool
) -> httpcore2.AsyncConnectionPool:
    options: dict[str, Any] = {
        "ssl_context": context,
        "http2": http2,
        # No limit: other code limits the requests, and if the pool did, watches could delay
        # the lease.
        "max_connections": None,
        "max_keepalive_connections": 10,
        "keepalive_expiry": _IDLE,
        "network_backend": _Network(network),
        "socket_options": list(_KEEPALIVE),
    }
    if not config.proxy_url:
        return httpcore2.AsyncConnectionPool(**options)
    url = urlsplit(config.proxy_url)
    login = (unquote(url.username or "").encode(), unquote(url.password or "").encode())
    return httpcore2.AsyncHTTPProxy(
        url._replace(netloc=url.netloc.rpartition("@")[2]).geturl(),
        proxy_auth=login if any(login) else None,
        **options,
    )


class _Network(httpcore2.AsyncNetworkBackend):
    """A network backend whose streams are closed when a TLS handshake is cancelled."""

    def __init__(self, network: httpcore2.AsyncNetworkBackend | None) -> None:
        self._network = network or httpcore2.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the library's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class _Stream(httpcore2.AsyncNetworkStream):
    """A stream that is closed if its TLS handshake does not complete."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: Any,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        stream = None
        try:
            stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        finally:
            # The library leaves the socket open then: its own clean-up catches Exception, and
            # Trio's Cancelled is none.
            if stream is None:
                with trio.move_on_after(_CLOSE, shield=True):
                    await self._stream.aclose()
        return _Stream(stream)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
