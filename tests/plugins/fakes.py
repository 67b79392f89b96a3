"""A plugin with its registration socket, and a handler; both keep what was told to them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from kubelet_trio.grpc import GRPCError, Server, Status
from kubelet_trio.plugins.generated.pluginregistration import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from kubelet_trio.plugins.generated.pluginregistration.server import RegistrationBase

CSI = "CSIPlugin"


class DriverBrokeError(Exception):
    """What the handler below raises for a driver that fails."""


@dataclass(eq=False)
class FakePlugin(RegistrationBase):
    """A plugin's registration service; what it does can be changed at any time."""

    path: Path
    name: str = "disk.example.com"
    type: str = CSI
    endpoint: str = "/var/lib/kubelet/plugins/disk/csi.sock"
    versions: Sequence[str] = ("1.0.0",)
    hangs: bool = False
    refuses_status: bool = False
    asked: int = 0
    told: list[tuple[bool, str]] = field(default_factory=list)
    _changed: trio.Event = field(default_factory=trio.Event)

    async def get_info(self, request: InfoRequest) -> PluginInfo:
        self.asked += 1
        self._note()
        if self.hangs:
            await trio.sleep_forever()
        return PluginInfo(
            type=self.type,
            name=self.name,
            endpoint=self.endpoint,
            supported_versions=list(self.versions),
        )

    async def notify_registration_status(
        self, request: RegistrationStatus
    ) -> RegistrationStatusResponse:
        self.told.append((request.plugin_registered, request.error))
        self._note()
        if self.refuses_status:
            raise GRPCError(Status.INTERNAL, "no, thanks")
        return RegistrationStatusResponse()

    def _note(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_told(self, count: int = 1) -> tuple[bool, str]:
        """Wait until it was told this many outcomes; return the last."""
        while len(self.told) < count:
            await self._changed.wait()
        return self.told[-1]

    async def wait_asked(self, count: int = 1) -> None:
        while self.asked < count:
            await self._changed.wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve within a block; the socket is removed at its end, as a plugin that stops does."""
        self.path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.path))
            listening.listen()
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(Server([self]).serve, [listener])
                    yield
                    nursery.cancel_scope.cancel()
            finally:
                self.path.unlink(missing_ok=True)


class FakeHandler:
    """Keeps which plugins are registered, as (name, endpoint); may refuse, wait or fail."""

    errors = (DriverBrokeError, ValueError)

    def __init__(self, *, is_exclusive: bool = True) -> None:
        self.is_exclusive = is_exclusive
        self.registered: list[tuple[str, str]] = []
        self.history: list[str] = []
        self.refusal = ""
        self.failure = ""
        self.hangs = False
        self.breaks = trio.Event()  # then the registered ones fail
        self._changed = trio.Event()

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        if self.refusal:
            raise ValueError(self.refusal)

    async def run_plugin(
        self,
        name: str,
        endpoint: str,
        versions: Sequence[str],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with trio.open_nursery():  # as one with a channel, so that errors come in groups
            if self.hangs:
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            if self.failure:
                raise DriverBrokeError(self.failure)
            one = (name, endpoint)
            self.registered.append(one)
            self._note(f"+{endpoint}")
            try:
                task_status.started()
                await self.breaks.wait()
                raise DriverBrokeError("it broke")
            finally:
                self.registered.remove(one)
                self._note(f"-{endpoint}")

    def _note(self, what: str) -> None:
        self.history.append(what)
        self._changed.set()
        self._changed = trio.Event()

    async def wait_registered(self, *endpoints: str) -> None:
        """Wait until just these endpoints are registered."""
        while sorted(endpoint for _, endpoint in self.registered) != sorted(endpoints):
            await self._changed.wait()
