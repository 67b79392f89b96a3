"""Targets: what a plugin says on its registration socket, through the client that asks it."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import trio
from hypothesis import strategies as st

from kubelet_trio.grpc import Handler, RawMessage, Server, unary_unary
from kubelet_trio.plugins.errors import RegistrationError
from kubelet_trio.plugins.generated.pluginregistration import PluginInfo
from kubelet_trio.plugins.names import check_offer
from kubelet_trio.plugins.registrar import ask_info
from kubelet_trio.plugins.types import PluginOffer
from tests.fuzz.mutate import edited, messages
from tests.fuzz.target import Target, in_trio
from tests.grpc import raw_peer

_Serve = Callable[[trio.SocketStream], Awaitable[None]]


class _Registrar:
    """Answers GetInfo with these bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = RawMessage(answer)

    async def _info(self, _: RawMessage) -> RawMessage:
        await trio.lowlevel.checkpoint()
        return self._answer

    def __mapping__(self) -> Mapping[str, Handler]:
        handler = unary_unary(self._info, RawMessage, RawMessage)
        return {"/pluginregistration.Registration/GetInfo": handler}


def _asked(serve: _Serve) -> PluginOffer:
    """Ask a plugin that serves each connection so, and check what it says."""
    failure: RegistrationError | None = None
    info = PluginInfo()

    async def main() -> None:
        nonlocal failure, info
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            path = Path(directory, "s")
            listening.bind(str(path))
            listening.listen()
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, serve, [listener])
                try:
                    info = await ask_info(str(path))
                except RegistrationError as exc:  # not through the nursery: it would be a group
                    failure = exc
                nursery.cancel_scope.cancel()

    in_trio(main)
    if failure is not None:
        raise failure
    return check_offer(info.type, info.name, info.endpoint, info.supported_versions, "/socket")


def _answered(data: bytes) -> PluginOffer:
    return _asked(Server([_Registrar(data)]).serve_stream)


def _said(data: bytes) -> PluginOffer:
    async def talk(stream: trio.SocketStream) -> None:
        try:
            await stream.send_all(data[: len(_SETTINGS)])
            with trio.move_on_after(0.1):  # the request comes meanwhile
                async for _ in stream:
                    pass
            await stream.send_all(data[len(_SETTINGS) :])
            await stream.send_eof()
            async for _ in stream:
                pass
        except trio.BrokenResourceError:
            return  # the agent hung up first

    return _asked(talk)


_INFO = bytes(
    PluginInfo(
        type="CSIPlugin",
        name="disk.example.com",
        endpoint="/var/lib/kubelet/plugins/disk/csi.sock",
        supported_versions=["1.0.0", "1.1.0"],
    )
)
_SETTINGS = raw_peer.settings(max_concurrent_streams=10)
_TALK = b"".join(
    (
        _SETTINGS,
        raw_peer.headers(raw_peer.OK_HEADERS),
        raw_peer.data(raw_peer.message(_INFO)),
        raw_peer.trailers(),
    )
)

TARGETS = [
    Target(
        "a plugin's answer to GetInfo",
        _answered,
        [_INFO],
        messages([_INFO]),
        (RegistrationError, ValueError),
    ),
    Target(
        "a plugin's connection",
        _said,
        [_TALK],
        edited(st.just(_TALK)),
        (RegistrationError, ValueError),
    ),
]
