"""Reads the body of a watch: one JSON event a line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

import httpcore2
import msgspec
import trio

from kubelet_trio.kube.api import Bookmark, WatchEvent, WatchEventKind
from kubelet_trio.kube.codec import RawEvent, decode, decode_status, error_from
from kubelet_trio.kube.connections import WatchConnection
from kubelet_trio.kube.errors import KubeUnavailableError
from kubelet_trio.kube.exchange import NETWORK_ERRORS

T = TypeVar("T")

_LONGEST = 32 * 2**20  # bytes of a line
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Marked(msgspec.Struct):
    metadata: _Meta


async def watch_events(
    response: httpcore2.Response, model: type[T], what: str
) -> AsyncGenerator[WatchEvent[T] | Bookmark, None]:
    """Yield the events of a watch until the server ends it.

    Raises:
        KubeError: the server ended the watch with an error.
        KubeUnavailableError: the connection broke, or a line is not an event.
    """
    async with aclosing(_lines(response, what)) as lines:
        async for line in lines:
            # A full buffer holds many events: let other tasks run between them.
            await trio.lowlevel.checkpoint()
            # The consumer closes this generator: `KubeClient.watch` does.
            yield read_event(line, model, what)  # noqa: ASYNC119


class CurrentEvents(AsyncIterator[T]):
    """The events of a watch; they end as if by the server when the credentials are replaced.

    No event is lost: the next watch continues after the last event that this one returned.
    """

    def __init__(self, events: AsyncIterator[T], connection: WatchConnection) -> None:
        self._events = events
        self._connection = connection

    async def __anext__(self) -> T:
        with self._connection.waiting() as scope:
            return await anext(self._events)
        assert scope.cancelled_caught
        raise StopAsyncIteration


def read_event(line: bytes, model: type[T], what: str) -> WatchEvent[T] | Bookmark:
    """Return the event in a line; see `watch_events` for what it raises."""
    event = decode(line, RawEvent, what)
    if event.type == "BOOKMARK":
        # Servers send only metadata: fields that the model requires may be null.
        meta = decode(event.object, _Marked, what).metadata
        ends = (meta.annotations or {}).get(_INITIAL_EVENTS_END) == "true"
        return Bookmark(meta.resource_version, ends)
    if event.type == "ERROR":
        status = decode_status(event.object)
        if status is None or not status.code:
            shown = bytes(event.object)[:200].decode(errors="replace")
            raise KubeUnavailableError(f"{what}: the watch ended with {shown}")
        raise error_from(status)
    try:
        kind = WatchEventKind(event.type)
    except ValueError as exc:
        raise KubeUnavailableError(f"{what}: unknown watch event {event.type!r}") from exc
    return WatchEvent(kind, decode(event.object, model, what))


async def _lines(response: httpcore2.Response, what: str) -> AsyncGenerator[bytes, None]:
    rest = bytearray()
    try:
        async with aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                # Search only the new chunk: a long line may arrive in many of them.
                start, end = 0, chunk.find(b"\n")
                while end >= 0:
                    rest += chunk[start:end]
                    if rest.strip():
                        yield bytes(rest)  # noqa: ASYNC119  # closed by `watch_events`
                    rest.clear()
                    start, end = end + 1, chunk.find(b"\n", end + 1)
                rest += chunk[start:]
                if len(rest) > _LONGEST:
                    raise KubeUnavailableError(f"{what}: a line over {_LONGEST // 2**20} MiB")
    # Also the ordinary end of a watch when the server restarts.
    except NETWORK_ERRORS as exc:
        raise KubeUnavailableError(f"{what}: the watch broke: {exc or type(exc).__name__}") from exc
    if rest.strip():
        raise KubeUnavailableError(f"{what}: the watch broke in the middle of an event")


def _chunks(response: httpcore2.Response) -> AsyncGenerator[bytes, None]:
    stream: Any = response.stream
    chunks: AsyncGenerator[bytes, None] = stream.__aiter__()
    return chunks
