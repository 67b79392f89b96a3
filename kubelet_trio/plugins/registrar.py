"""The calls of a plugin's registration socket. Each has a connection of its own.

The other end is hostile or broken until it has proved itself: each call has a deadline, and the
connection breaks when it has received more than any answer needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from kubelet_trio.grpc import Channel, GRPCError, open_channel
from kubelet_trio.plugins.errors import RegistrationError
from kubelet_trio.plugins.generated.pluginregistration import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from kubelet_trio.plugins.generated.pluginregistration.client import RegistrationStub
from kubelet_trio.plugins.names import MOST_SHOWN

DIAL_TIMEOUT = 10.0  # s: dialTimeoutDuration in pluginmanager/operationexecutor
CALL_TIMEOUT = 5.0  # s: notifyTimeoutDuration; for GetInfo upstream has 1 s
_LISTEN_TIMEOUT = 2.0  # s that a socket may exist before its program listens
_REDIAL = 0.2  # s
_MOST_RECEIVED = 256 * 1024  # bytes; an answer has some hundred
T = TypeVar("T")


async def ask_info(socket: str) -> PluginInfo:
    """Return what a plugin says of itself. Raises `RegistrationError`."""

    async def call(channel: Channel) -> PluginInfo:
        return await RegistrationStub(channel).get_info(InfoRequest(), timeout=CALL_TIMEOUT)

    return await _within(socket, "GetInfo", call)


async def notify_status(socket: str, error: str) -> None:
    """Notify a plugin that it is registered, or why it is not. Raises `RegistrationError`."""
    status = RegistrationStatus(plugin_registered=not error, error=error)

    async def call(channel: Channel) -> RegistrationStatusResponse:
        stub = RegistrationStub(channel)
        return await stub.notify_registration_status(status, timeout=CALL_TIMEOUT)

    await _within(socket, "NotifyRegistrationStatus", call)


async def _within(socket: str, method: str, call: Callable[[Channel], Awaitable[T]]) -> T:
    """Connect, make one call, hang up. Raises `RegistrationError`."""
    failure = ""
    stream = await _dial(socket)

    async def dialed() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return stream

    async with (
        stream,
        open_channel(dialed, max_message_bytes=_MOST_RECEIVED) as channel,
    ):
        try:
            return await call(channel)
        except GRPCError as exc:  # here, since the channel's nursery would wrap it in a group
            failure = f"{exc.status.name}: {(exc.message or '')[:MOST_SHOWN]}"
    raise RegistrationError(f"{method} failed: {failure}")


async def _dial(socket: str) -> _BoundedStream:
    """Connect to a socket. Raises `RegistrationError`."""
    listens_by = trio.current_time() + _LISTEN_TIMEOUT
    with trio.move_on_after(DIAL_TIMEOUT):
        while True:
            try:
                return _BoundedStream(await trio.open_unix_socket(socket))
            except ConnectionRefusedError as exc:
                # Between bind(2), which makes the socket, and listen(2).
                if trio.current_time() >= listens_by:
                    raise RegistrationError("no program serves the socket") from exc
            except OSError as exc:
                raise RegistrationError(f"cannot connect: {exc.strerror or exc}") from exc
            await trio.sleep(_REDIAL)
    raise RegistrationError(f"no connection within {DIAL_TIMEOUT:g} s")


class _BoundedStream(trio.abc.Stream):
    """A stream that breaks once the plugin has sent more than any answer needs.

    Messages have a limit of their own; this one ends floods of frames, such as PINGs.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._left = _MOST_RECEIVED

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return the next data; b"" at the end. Raises trio.BrokenResourceError."""
        data = await self._stream.receive_some(max_bytes)
        self._left -= len(data)
        if self._left < 0:
            raise trio.BrokenResourceError(f"the plugin sent more than {_MOST_RECEIVED} bytes")
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()
