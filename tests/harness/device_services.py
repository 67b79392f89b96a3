"""A `FakeDevicePlugin` on our gRPC server, and its registration at a kubelet.

    async with trio.open_nursery() as nursery:
        await nursery.start(run_device_plugin, plugin, root / "device-plugins")

For a transport of your own (memory streams): `device_plugin_server(plugin).serve_stream`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from kubelet_trio.grpc import Dial, GRPCError, Server, ServerStream, open_channel
from kubelet_trio.managers.devices.generated import v1beta1
from kubelet_trio.managers.devices.generated.v1beta1.client import RegistrationStub
from kubelet_trio.managers.devices.generated.v1beta1.server import DevicePluginBase
from kubelet_trio.plugins.generated import pluginregistration as registration
from kubelet_trio.plugins.generated.pluginregistration.server import RegistrationBase
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing.devices import (
    DeviceGrant,
    FakeDevice,
    FakeDevicePlugin,
    calls,
    device_call,
)

KUBELET_SOCKET = "kubelet.sock"
LOOKS_EVERY = 0.2  # seconds between two looks at the sockets
_REGISTERS_WITHIN = 10.0  # seconds
_MAX_BYTES = 64 << 20  # of an answer


def device_plugin_server(plugin: FakeDevicePlugin) -> Server:
    """Return a server of a plugin, which must run, with GetInfo for a plugins_registry.

    Its answers may have any size: that they are too large is a fault that tests inject.
    """
    return Server([_Plugin(plugin), _Registrar(plugin)], max_message_bytes=_MAX_BYTES)


async def serve_device_plugin(
    plugin: FakeDevicePlugin,
    listeners: Iterable[trio.abc.Listener[Any]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run and serve a plugin until cancelled, or until a fault kills it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_live, plugin, nursery.cancel_scope)
        await nursery.start(device_plugin_server(plugin).serve, list(listeners))
        task_status.started()


async def register_plugin(
    plugin: FakeDevicePlugin, kubelet: str | Dial, endpoint: str, *, version: str = ""
) -> None:
    """Register a plugin at a kubelet's socket.

    Args:
        plugin: it notes the answer.
        kubelet: the path of the socket, or what dials it.
        endpoint: the name of the plugin's socket beside it.
        version: of the API; "": the plugin's first.

    Raises `GRPCError`, also where nobody listens.
    """
    request = v1beta1.RegisterRequest(
        version=version or plugin.versions[0],
        endpoint=endpoint,
        resource_name=plugin.resource,
        options=_options(plugin),
    )
    refusal: GRPCError | None = None
    async with open_channel(kubelet) as channel:
        try:
            await RegistrationStub(channel).register(request, timeout=_REGISTERS_WITHIN)
        except GRPCError as exc:  # raised below: the channel's nursery would wrap it in a group
            refusal = exc
    if refusal is not None:
        plugin.note_registration(refusal.message or refusal.status.name)
        raise refusal
    plugin.note_registration("")


@dataclass(frozen=True, slots=True)
class PluginTransport:
    """How a plugin serves and registers.

    Attributes:
        serve: serves a plugin at a path of a socket until cancelled; ready once it listens.
        register: registers it at the path of a kubelet's socket, with the name of its own; notes
            the answer, and raises `GRPCError` if it is an error.
    """

    serve: Callable[..., Awaitable[None]]
    register: Callable[[FakeDevicePlugin, str, str], Awaitable[None]]


async def serve_at(
    plugin: FakeDevicePlugin,
    path: Path,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a plugin, which must run, at a path until cancelled."""
    await device_plugin_server(plugin).serve([open_unix(path)], task_status=task_status)


OURS = PluginTransport(serve_at, register_plugin)


async def run_device_plugin(
    plugin: FakeDevicePlugin,
    directory: Path,
    endpoint: str = "",
    transport: PluginTransport = OURS,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a plugin beside a kubelet's socket, as a well-behaved plugin does.

    It registers whenever there is a new kubelet.sock, and binds its own socket anew where that is
    gone: a kubelet removes the sockets of others when it starts. It runs until it is cancelled, or
    until a fault kills it; its socket stays then.

    Args:
        plugin: what to serve.
        directory: a kubelet's device-plugins.
        endpoint: the name of the plugin's socket; "": after its resource.
        transport: how it serves and registers.
    """
    endpoint = endpoint or endpoint_of(plugin.resource)
    async with trio.open_nursery() as nursery:
        await nursery.start(_live, plugin, nursery.cancel_scope)
        task_status.started()
        while True:
            await _attend(plugin, directory / KUBELET_SOCKET, directory / endpoint, transport)


def endpoint_of(resource: str) -> str:
    """Return the name of a plugin's socket."""
    return f"{resource.replace('/', '_')}.sock"


async def _attend(
    plugin: FakeDevicePlugin, kubelet: Path, own: Path, transport: PluginTransport
) -> None:
    """Serve and register at the next kubelet, as long as both sockets are the same."""
    while (found := _identity(kubelet)) is None:  # noqa: ASYNC110  # no event: a file appears
        await trio.sleep(LOOKS_EVERY)
    async with trio.open_nursery() as serving:
        await serving.start(transport.serve, plugin, own)
        bound, is_registered = _identity(own), False
        while _identity(kubelet) == found and _identity(own) == bound:
            if not is_registered:
                with suppress(GRPCError):  # noted by the plugin, and tried again
                    await transport.register(plugin, str(kubelet), own.name)
                    is_registered = True
            await trio.sleep(LOOKS_EVERY)
        serving.cancel_scope.cancel()


async def _live(
    plugin: FakeDevicePlugin, all_of_it: trio.CancelScope, task_status: trio.TaskStatus[None]
) -> None:
    await plugin.run(task_status=task_status)
    all_of_it.cancel()


def _identity(path: Path) -> tuple[int, int] | None:
    """Tell a file from the one that had its path before; file systems use inodes again."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


class _Plugin(DevicePluginBase):
    def __init__(self, plugin: FakeDevicePlugin) -> None:
        self._plugin = plugin

    async def get_device_plugin_options(
        self, request: v1beta1.Empty
    ) -> v1beta1.DevicePluginOptions:
        await self._plugin.options()
        return _options(self._plugin)

    async def list_and_watch(
        self,
        request: v1beta1.Empty,
        stream: ServerStream[v1beta1.Empty, v1beta1.ListAndWatchResponse],
    ) -> None:
        seen = await self._plugin.begin_watch()
        while (listed := await self._plugin.next_list(seen)) is not None:
            seen, devices = listed
            message = v1beta1.ListAndWatchResponse(devices=[_device(d) for d in devices])
            await stream.send_message(message)

    async def get_preferred_allocation(
        self, request: v1beta1.PreferredAllocationRequest
    ) -> v1beta1.PreferredAllocationResponse:
        preferred = await self._plugin.prefer(device_call(calls.PREFER, request))
        answer = v1beta1.ContainerPreferredAllocationResponse
        return v1beta1.PreferredAllocationResponse(
            container_responses=[answer(device_i_ds=list(ids)) for ids in preferred]
        )

    async def allocate(self, request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        granted = await self._plugin.allocate(device_call(calls.ALLOCATE, request))
        return v1beta1.AllocateResponse(container_responses=[_granted(one) for one in granted])

    async def pre_start_container(
        self, request: v1beta1.PreStartContainerRequest
    ) -> v1beta1.PreStartContainerResponse:
        await self._plugin.pre_start(device_call(calls.PRE_START, request))
        return v1beta1.PreStartContainerResponse()


class _Registrar(RegistrationBase):
    def __init__(self, plugin: FakeDevicePlugin) -> None:
        self._plugin = plugin

    async def get_info(self, request: registration.InfoRequest) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=calls.PLUGIN_TYPE,
            name=self._plugin.resource,
            supported_versions=list(self._plugin.versions),
        )

    async def notify_registration_status(
        self, request: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        self._plugin.note_registration("" if request.plugin_registered else request.error)
        return registration.RegistrationStatusResponse()


def _options(plugin: FakeDevicePlugin) -> v1beta1.DevicePluginOptions:
    return v1beta1.DevicePluginOptions(
        pre_start_required=plugin.rules.needs_pre_start,
        get_preferred_allocation_available=plugin.rules.prefers,
    )


def _device(device: FakeDevice) -> v1beta1.Device:
    nodes = [v1beta1.NumaNode(id=node) for node in device.nodes]
    topology = v1beta1.TopologyInfo(nodes=nodes) if nodes else None
    return v1beta1.Device(id=device.id, health=device.health, topology=topology)


def _granted(grant: DeviceGrant) -> v1beta1.ContainerAllocateResponse:
    return v1beta1.ContainerAllocateResponse(
        envs=dict(grant.environment),
        mounts=[
            v1beta1.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.is_read_only,
            )
            for mount in grant.mounts
        ],
        devices=[
            v1beta1.DeviceSpec(
                container_path=node.container_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
            for node in grant.nodes
        ],
        annotations=dict(grant.annotations),
        cdi_devices=[v1beta1.CdiDevice(name=name) for name in grant.cdi_devices],
    )
