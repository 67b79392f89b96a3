"""A `FakeDraDriver` on our gRPC server, and its sockets on a node.

    async with trio.open_nursery() as nursery:
        await nursery.start(run_dra_driver, driver, root)

For a transport of your own (memory streams): `dra_server(driver, "/endpoint").serve_stream`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from kubelet_trio.grpc import Server, ServerStream
from kubelet_trio.managers.claims.generated import v1 as health_v1
from kubelet_trio.managers.claims.generated import v1alpha1 as health_v1alpha1
from kubelet_trio.managers.claims.generated.k8s.io.kubelet.pkg.apis.dra import v1, v1beta1
from kubelet_trio.managers.claims.generated.k8s.io.kubelet.pkg.apis.dra.v1.server import (
    DraPluginBase,
)
from kubelet_trio.managers.claims.generated.k8s.io.kubelet.pkg.apis.dra.v1beta1.server import (
    DraPluginBase as DraPluginV1Beta1Base,
)
from kubelet_trio.managers.claims.generated.v1.server import DraResourceHealthBase
from kubelet_trio.managers.claims.generated.v1alpha1.server import (
    DraResourceHealthBase as DraResourceHealthV1Alpha1Base,
)
from kubelet_trio.plugins.generated import pluginregistration as registration
from kubelet_trio.plugins.generated.pluginregistration.server import RegistrationBase
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing.dra import (
    FakeClaimDevice,
    FakeDeviceHealth,
    FakeDraDriver,
    calls,
    dra_call,
)

_MAX_BYTES = 64 << 20  # of an answer: that it is too large is a fault that tests inject


def dra_server(driver: FakeDraDriver, endpoint: str) -> Server:
    """Return a server of an instance, which must run: its services, and GetInfo for a registry."""
    served: list[Any] = [_Registrar(driver, endpoint)]
    for service, make in _SERVICES.items():
        if service in driver.services:
            served.append(make(driver))
    return Server(served, max_message_bytes=_MAX_BYTES)


@dataclass(frozen=True, slots=True)
class DraTransport:
    """How a driver serves: `serve(driver, endpoint, paths)` at sockets, until cancelled."""

    serve: Callable[..., Awaitable[None]]


async def serve_at(
    driver: FakeDraDriver,
    endpoint: Path,
    paths: list[Path],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an instance, which must run, at some paths; `endpoint` is what GetInfo answers."""
    listeners = [open_unix(path) for path in paths]
    await dra_server(driver, str(endpoint)).serve(listeners, task_status=task_status)


OURS = DraTransport(serve_at)


def endpoint_of(driver: FakeDraDriver, root: Path) -> Path:
    """Return the path of an instance's own socket, as k8s.io/dynamic-resource-allocation has it."""
    return root / "plugins" / driver.name / f"dra{driver.instance and '-' + driver.instance}.sock"


def registration_of(driver: FakeDraDriver, root: Path) -> Path:
    """Return the path of an instance's socket for the registration."""
    name = f"{driver.name}{driver.instance and '-' + driver.instance}-reg.sock"
    return root / "plugins_registry" / name


async def run_dra_driver(
    driver: FakeDraDriver,
    root: Path,
    transport: DraTransport = OURS,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an instance below a kubelet's root directory, as a well-behaved driver does.

    When it is cancelled it removes its sockets, that of the registration first; when a fault kills
    it, they stay.
    """
    endpoint, registered = endpoint_of(driver, root), registration_of(driver, root)
    for path in (endpoint, registered):
        path.parent.mkdir(parents=True, exist_ok=True)
    is_dead = False
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.serve, driver, endpoint, [endpoint, registered])
            await driver.run(task_status=task_status)
            is_dead = True
            nursery.cancel_scope.cancel()
    finally:
        if not is_dead:
            registered.unlink(missing_ok=True)
            endpoint.unlink(missing_ok=True)


class _V1(DraPluginBase):
    def __init__(self, driver: FakeDraDriver) -> None:
        self._driver = driver

    async def node_prepare_resources(
        self, request: v1.NodePrepareResourcesRequest
    ) -> v1.NodePrepareResourcesResponse:
        answered = await self._driver.prepare(dra_call(calls.PREPARE, calls.V1, request))
        return v1.NodePrepareResourcesResponse(
            claims={
                uid: v1.NodePrepareResourceResponse(error=found)
                if isinstance(found, str)
                else v1.NodePrepareResourceResponse(
                    devices=[v1.Device(**_fields(d), share_id=d.share_id or None) for d in found]
                )
                for uid, found in answered.items()
            }
        )

    async def node_unprepare_resources(
        self, request: v1.NodeUnprepareResourcesRequest
    ) -> v1.NodeUnprepareResourcesResponse:
        answered = await self._driver.unprepare(dra_call(calls.UNPREPARE, calls.V1, request))
        found = {u: v1.NodeUnprepareResourceResponse(error=e) for u, e in answered.items()}
        return v1.NodeUnprepareResourcesResponse(claims=found)


class _V1Beta1(DraPluginV1Beta1Base):
    def __init__(self, driver: FakeDraDriver) -> None:
        self._driver = driver

    async def node_prepare_resources(
        self, request: v1beta1.NodePrepareResourcesRequest
    ) -> v1beta1.NodePrepareResourcesResponse:
        answered = await self._driver.prepare(dra_call(calls.PREPARE, calls.V1BETA1, request))
        return v1beta1.NodePrepareResourcesResponse(
            claims={
                uid: v1beta1.NodePrepareResourceResponse(error=found)
                if isinstance(found, str)
                else v1beta1.NodePrepareResourceResponse(
                    devices=[v1beta1.Device(**_fields(device)) for device in found]
                )
                for uid, found in answered.items()
            }
        )

    async def node_unprepare_resources(
        self, request: v1beta1.NodeUnprepareResourcesRequest
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        answered = await self._driver.unprepare(dra_call(calls.UNPREPARE, calls.V1BETA1, request))
        found = {u: v1beta1.NodeUnprepareResourceResponse(error=e) for u, e in answered.items()}
        return v1beta1.NodeUnprepareResourcesResponse(claims=found)


class _HealthV1(DraResourceHealthBase):
    def __init__(self, driver: FakeDraDriver) -> None:
        self._driver = driver

    async def node_watch_resources(
        self,
        request: health_v1.NodeWatchResourcesRequest,
        stream: ServerStream[
            health_v1.NodeWatchResourcesRequest, health_v1.NodeWatchResourcesResponse
        ],
    ) -> None:
        seen = await self._driver.begin_watch(calls.HEALTH_V1)
        while (listed := await self._driver.next_health(seen)) is not None:
            seen, healths = listed
            await stream.send_message(
                health_v1.NodeWatchResourcesResponse(
                    devices=[
                        health_v1.DeviceHealth(
                            device=health_v1.DeviceIdentifier(h.pool, h.name),
                            health=health_v1.HealthStatus(calls.HEALTH_NUMBERS[h.status]),
                            health_check_timeout_seconds=h.timeout,
                            message=h.message,
                        )
                        for h in healths
                    ]
                )
            )


class _HealthV1Alpha1(DraResourceHealthV1Alpha1Base):
    def __init__(self, driver: FakeDraDriver) -> None:
        self._driver = driver

    async def node_watch_resources(
        self,
        request: health_v1alpha1.NodeWatchResourcesRequest,
        stream: ServerStream[
            health_v1alpha1.NodeWatchResourcesRequest, health_v1alpha1.NodeWatchResourcesResponse
        ],
    ) -> None:
        seen = await self._driver.begin_watch(calls.HEALTH_V1ALPHA1)
        while (listed := await self._driver.next_health(seen)) is not None:
            seen, healths = listed
            await stream.send_message(
                health_v1alpha1.NodeWatchResourcesResponse(devices=list(map(_alpha, healths)))
            )


def _alpha(health: FakeDeviceHealth) -> health_v1alpha1.DeviceHealth:
    return health_v1alpha1.DeviceHealth(
        device=health_v1alpha1.DeviceIdentifier(health.pool, health.name),
        health=health_v1alpha1.HealthStatus(calls.HEALTH_NUMBERS[health.status]),
        health_check_timeout_seconds=health.timeout,
        message=health.message,
    )


class _Registrar(RegistrationBase):
    def __init__(self, driver: FakeDraDriver, endpoint: str) -> None:
        self._driver, self._endpoint = driver, endpoint

    async def get_info(self, request: registration.InfoRequest) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=calls.PLUGIN_TYPE,
            name=self._driver.name,
            endpoint=self._endpoint,
            supported_versions=list(self._driver.services),
        )

    async def notify_registration_status(
        self, request: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        self._driver.note_registration("" if request.plugin_registered else request.error)
        return registration.RegistrationStatusResponse()


_SERVICES: dict[str, Callable[[FakeDraDriver], Any]] = {
    calls.V1: _V1,
    calls.V1BETA1: _V1Beta1,
    calls.HEALTH_V1: _HealthV1,
    calls.HEALTH_V1ALPHA1: _HealthV1Alpha1,
}


def _fields(device: FakeClaimDevice) -> dict[str, Any]:
    return {
        "request_names": list(device.requests),
        "pool_name": device.pool,
        "device_name": device.name,
        "cdi_device_ids": list(device.cdi_ids or ()),
    }
