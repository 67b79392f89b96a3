"""A `FakeDevicePlugin` on grpcio: an independent peer, with messages of its own.

Its stubs are made from protos/ by grpcio-tools when the plugin starts. grpcio's threads hand each
call to the plugin's Trio thread, and cancel it there when the caller gives up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc
import trio

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.devices import (
    DeviceGrant,
    FakeDevice,
    FakeDevicePlugin,
    calls,
    device_call,
)
from tests.harness.device_services import PluginTransport
from tests.harness.grpcio_stubs import grpcio_stubs

T = TypeVar("T")
_CALLS = 32  # at a time; a call that hangs keeps its thread, as ListAndWatch does
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_STATUSES = {status.value: status for status in Status}


def grpcio_transport(stubs: Path) -> PluginTransport:
    """Return how a plugin serves and registers with grpcio; `stubs` is a directory for sources."""
    peer = _Peer(stubs)
    return PluginTransport(peer.serve, peer.register)


class _Peer:
    def __init__(self, stubs: Path) -> None:
        self._messages, self._services = grpcio_stubs("deviceplugin", stubs)
        self._registering, self._registry = grpcio_stubs("pluginregistration", stubs)

    async def serve(
        self,
        plugin: FakeDevicePlugin,
        path: Path,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(_CALLS, "grpcio"))
        thread = TrioThread()
        self._services.add_DevicePluginServicer_to_server(
            _Servicer(plugin, self._messages, thread), server
        )
        self._registry.add_RegistrationServicer_to_server(
            _Registrar(plugin, self._registering, thread), server
        )
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            server.stop(None)

    async def register(self, plugin: FakeDevicePlugin, kubelet: str, endpoint: str) -> None:
        refusal = await trio.to_thread.run_sync(self._register, plugin, kubelet, endpoint)
        plugin.note_registration("" if refusal is None else refusal.message or refusal.status.name)
        if refusal is not None:
            raise refusal

    def _register(self, plugin: FakeDevicePlugin, kubelet: str, endpoint: str) -> GRPCError | None:
        m = self._messages
        request = m.RegisterRequest(
            version=plugin.versions[0],
            endpoint=endpoint,
            resource_name=plugin.resource,
            options=_options(m, plugin),
        )
        # The authority is set because a socket's path is none that servers accept.
        options = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(f"unix:{kubelet}", options=options) as channel:
            try:
                self._services.RegistrationStub(channel).Register(request, timeout=10)
            except grpc.RpcError as exc:
                return GRPCError(_STATUSES[exc.code().value[0]], exc.details())
        return None


class TrioThread:
    """Runs what a thread of grpcio asks for in the plugin's Trio thread."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def run(
        self, call: Callable[..., Awaitable[T]], *arguments: Any, context: grpc.ServicerContext
    ) -> T:
        """Run a call, and cancel it when its caller gives up; a `GRPCError` ends the call."""
        try:
            return trio.from_thread.run(
                self._within, call, arguments, context, trio_token=self._token
            )
        except GRPCError as exc:
            context.abort(_CODES[exc.status.value], exc.message or "")
            raise  # not reached: `abort` raises

    def run_sync(self, call: Callable[..., T], *arguments: Any) -> T:
        return trio.from_thread.run_sync(call, *arguments, trio_token=self._token)

    async def _within(
        self,
        call: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        context: grpc.ServicerContext,
    ) -> T:
        with trio.CancelScope() as scope:
            # It is called at the end of every call; to cancel one that has ended does nothing.
            # False: the call has ended already.
            if not context.add_callback(lambda: self._token.run_sync_soon(scope.cancel)):
                scope.cancel()
            return await call(*arguments)
        raise GRPCError(Status.CANCELLED, "the caller gave up")


class _Servicer:
    """v1beta1.DevicePlugin. grpcio wants its methods' names to be those of the calls."""

    def __init__(self, plugin: FakeDevicePlugin, messages: Any, thread: TrioThread) -> None:
        self._plugin, self._messages, self._thread = plugin, messages, thread

    def GetDevicePluginOptions(  # noqa: N802
        self, _request: Any, context: grpc.ServicerContext
    ) -> Any:
        self._thread.run(self._plugin.options, context=context)
        return _options(self._messages, self._plugin)

    def ListAndWatch(  # noqa: N802
        self, _request: Any, context: grpc.ServicerContext
    ) -> Iterator[Any]:
        plugin = self._plugin
        seen = self._thread.run(plugin.begin_watch, context=context)
        while listed := self._thread.run(plugin.next_list, seen, context=context):
            seen, devices = listed
            yield self._messages.ListAndWatchResponse(devices=map(self._device, devices))

    def GetPreferredAllocation(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        call = device_call(calls.PREFER, request)
        m = self._messages
        preferred = self._thread.run(self._plugin.prefer, call, context=context)
        answers = [m.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in preferred]
        return m.PreferredAllocationResponse(container_responses=answers)

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        call = device_call(calls.ALLOCATE, request)
        granted = self._thread.run(self._plugin.allocate, call, context=context)
        return self._messages.AllocateResponse(container_responses=map(self._granted, granted))

    def PreStartContainer(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        call = device_call(calls.PRE_START, request)
        self._thread.run(self._plugin.pre_start, call, context=context)
        return self._messages.PreStartContainerResponse()

    def _device(self, device: FakeDevice) -> Any:
        m = self._messages
        made = m.Device(ID=device.id, health=device.health)
        for node in device.nodes:
            made.topology.nodes.add(ID=node)
        return made

    def _granted(self, grant: DeviceGrant) -> Any:
        made = self._messages.ContainerAllocateResponse(
            envs=dict(grant.environment), annotations=dict(grant.annotations)
        )
        for mount in grant.mounts:
            made.mounts.add(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.is_read_only,
            )
        for node in grant.nodes:
            made.devices.add(
                container_path=node.container_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
        for name in grant.cdi_devices:
            made.cdi_devices.add(name=name)
        return made


class _Registrar:
    """pluginregistration.Registration, for a plugins_registry."""

    def __init__(self, plugin: FakeDevicePlugin, messages: Any, thread: TrioThread) -> None:
        self._plugin, self._messages, self._thread = plugin, messages, thread

    def GetInfo(self, _request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._messages.PluginInfo(
            type=calls.PLUGIN_TYPE,
            name=self._plugin.resource,
            supported_versions=list(self._plugin.versions),
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: Any, _context: grpc.ServicerContext
    ) -> Any:
        error = "" if request.plugin_registered else request.error
        self._thread.run_sync(self._plugin.note_registration, error)
        return self._messages.RegistrationStatusResponse()


def _options(messages: Any, plugin: FakeDevicePlugin) -> Any:
    return messages.DevicePluginOptions(
        pre_start_required=plugin.rules.needs_pre_start,
        get_preferred_allocation_available=plugin.rules.prefers,
    )
