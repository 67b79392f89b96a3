"""The connections to an API server.

Requests share connections: over TLS the server chooses HTTP/2. Each watch has an HTTP/1.1
connection of its own, because the library ends a response on HTTP/2 without telling the
server, which would go on sending for ever; closing a connection says it clearly. Watches go
through a pool below httpx2: its own streams cannot be left halfway without litter.

The shared connections of one time, with one set of certificates, are a `Line`. A line retires
when the credentials change, or when a request on it was not answered (what is behind a shared
connection is then in doubt): requests in flight end on it, new ones open the next line. Watches
have no end of their own: when the credentials change they are ended, as client-go does.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httpcore2
import httpx2
import trio

from kubelet_trio.kube.credentials import Credentials, Material, make_context
from kubelet_trio.kube.kubeconfig import ClientConfig
from kubelet_trio.model import Offload, Purpose, thread_offload

_CLOSE = 5.0  # seconds that closing may take
_IDLE = 90.0  # seconds that a connection without requests is kept, as Go's
# A peer that is gone without a word is noticed after a minute, with no traffic at all.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
Network = httpcore2.AsyncNetworkBackend | None  # None is the real one


class Line:
    """The connections of one time."""

    def __init__(
        self, config: ClientConfig, material: Material, *, http2: bool, network: Network = None
    ) -> None:
        self.material = material
        self.http2 = http2  # offered
        self.retired = False
        self.users = 0
        # A context each: the pools set what they speak on theirs.
        self.client = _client(config, material, network, http2=http2)
        self.watch_context = make_context(config, material)

    async def close(self) -> None:
        """Close all connections."""
        with trio.move_on_after(_CLOSE, shield=True):
            await self.client.aclose()


class WatchConnection:
    """The connection of one watch."""

    def __init__(self, pool: httpcore2.AsyncConnectionPool, material: Material) -> None:
        self.pool = pool
        self.material = material
        self._is_outdated = False
        self._wait: trio.CancelScope | None = None

    def outdate(self) -> None:
        """Let nobody wait on it any more: other credentials have taken the place of its own."""
        self._is_outdated = True
        if self._wait is not None:
            self._wait.cancel()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[trio.CancelScope]:
        """Wait for what the watch tells next. The scope is cancelled when that is to end."""
        with trio.CancelScope() as scope:
            if self._is_outdated:
                scope.cancel()
            self._wait = scope
            try:
                yield scope
            finally:
                self._wait = None


class Connections:
    """The line in use, and those that retire. Close it at the end."""

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
        self._line: Line | None = None
        self._lines: list[Line] = []
        self._watches: set[WatchConnection] = set()

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Line]:
        """Hold the line in use, whose credentials are fresh.

        Raises:
            CredentialsError: there are none.
        """
        await self.credentials.refresh()
        line = await self._current()
        line.users += 1
        try:
            yield line
        finally:
            line.users -= 1
            with trio.move_on_after(_CLOSE, shield=True):
                await self._sweep()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[WatchConnection]:
        """Hold the connection of one watch, which ends with it.

        Raises:
            CredentialsError: there are none.
        """
        await self.credentials.refresh()
        line = await self._current()
        pool = _pool(self.credentials.config, line.watch_context, self._network)
        connection = WatchConnection(pool, line.material)
        self._watches.add(connection)
        try:
            yield connection
        finally:
            self._watches.discard(connection)
            with trio.move_on_after(_CLOSE, shield=True):
                await pool.aclose()

    def retire(self, line: Line) -> None:
        """Let no new request onto a line."""
        line.retired = True
        if self._line is line:
            self._line = None

    async def close(self) -> None:
        """Close everything, requests in flight included."""
        lines, self._lines, self._line = self._lines, [], None
        for line in lines:
            await line.close()

    async def _current(self) -> Line:
        async with self._lock:
            material = self.credentials.material
            assert material is not None  # `refresh` has run
            if self._line is not None and self._line.material != material:
                self.retire(self._line)
            for watch in self._watches:
                if watch.material != material:
                    watch.outdate()
            if self._line is None:
                self._line = await self._offload(
                    Line,
                    self.credentials.config,
                    material,
                    http2=self._http2,
                    network=self._network,
                )
                self._lines.append(self._line)
            line = self._line
        await self._sweep()
        return line

    async def _sweep(self) -> None:
        """Close the retired lines that nobody is on."""
        done = [line for line in self._lines if line.retired and not line.users]
        self._lines = [line for line in self._lines if line not in done]
        for line in done:
            await line.close()


def _client(
    config: ClientConfig, material: Material, network: Network, *, http2: bool
) -> httpx2.AsyncClient:
    context = make_context(config, material)
    transport = httpx2.AsyncHTTPTransport(
        verify=context,
        http2=http2,
        # As many as there are requests: their number is limited elsewhere, and a pool that
        # makes them wait would let watches starve the lease.
        limits=httpx2.Limits(
            max_connections=None, max_keepalive_connections=10, keepalive_expiry=_IDLE
        ),
        proxy=_proxy(config),
        socket_options=list(_KEEPALIVE),
    )
    pool: Any = transport._pool  # the library has no public way to a pool's network
    pool._network_backend = _Network(network)
    return httpx2.AsyncClient(
        transport=transport,
        trust_env=False,
        follow_redirects=False,
    )


def _pool(
    config: ClientConfig, context: ssl.SSLContext, network: Network
) -> httpcore2.AsyncConnectionPool:
    proxy = _proxy(config)
    options: dict[str, Any] = {
        "ssl_context": context,
        "network_backend": _Network(network),
        "socket_options": list(_KEEPALIVE),
    }
    if proxy is None:
        return httpcore2.AsyncConnectionPool(**options)
    return httpcore2.AsyncHTTPProxy(
        str(proxy.url), proxy_auth=proxy.raw_auth, proxy_headers=proxy.headers.raw, **options
    )


def _proxy(config: ClientConfig) -> httpx2.Proxy | None:
    if not config.proxy_url:
        return None
    return httpx2.Proxy(config.proxy_url)


class _Network(httpcore2.AsyncNetworkBackend):
    """A network whose streams are closed when a handshake is cancelled."""

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
    """A stream that does not leak."""

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
            if stream is None:  # the library leaves it open, after a cancellation above all
                with trio.move_on_after(_CLOSE, shield=True):
                    await self._stream.aclose()
        return _Stream(stream)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
