"""Servers on loopback that answer with canned bytes and remember what they were asked."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

Answer = Callable[[bytes], bytes]


@dataclass
class Server:
    """A server on loopback: `asked` are the heads of requests, `ends` what came after them."""

    port: int = 0
    asked: list[str] = field(default_factory=list)
    ends: list[bytes | str] = field(default_factory=list)

    async def wait_ends(self, count: int) -> None:
        """Wait until so many connections have come to their end."""
        while len(self.ends) < count:  # noqa: ASYNC110  # the kernel ends them
            await trio.sleep(0.01)

    @property
    def paths(self) -> list[str]:
        return [head.split(" ")[1] for head in self.asked]


@asynccontextmanager
async def serving(
    answer: Answer | bytes | None, *, tls: ssl.SSLContext | None = None, closes: bool = True
) -> AsyncIterator[Server]:
    """Serve answers (None: accept, and say nothing) until the end of the block."""
    server = Server()

    async def serve(stream: trio.abc.Stream) -> None:
        if tls is not None:
            stream = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                data = await stream.receive_some()
                if not data:
                    server.ends.append(head)
                    return
                head += data
            server.asked.append(head.decode())
            if answer is not None:
                await stream.send_all(answer(head) if callable(answer) else answer)
            if not closes or answer is None:
                server.ends.append(bytes(await stream.receive_some()))
        except trio.BrokenResourceError as exc:
            server.ends.append(str(exc.__cause__ or exc))
        finally:
            with trio.move_on_after(1):
                with suppress(trio.BrokenResourceError):
                    await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.port = listeners[0].socket.getsockname()[1]
        await nursery.start(trio.serve_listeners, serve, listeners)
        yield server
        nursery.cancel_scope.cancel()


def http(status: int, body: bytes = b"", *headers: str) -> bytes:
    """Return a complete answer."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
