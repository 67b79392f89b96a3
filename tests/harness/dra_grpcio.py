"""A `FakeDraDriver` on grpcio: an independent peer, with messages of its own.

Its stubs are made from protos/ by grpcio-tools when the driver starts. grpcio's threads hand each
call to the driver's Trio thread, and cancel it there when the caller gives up.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import trio

from kubelet_trio.testing.dra import (
    FakeClaimDevice,
    FakeDeviceHealth,
    FakeDraDriver,
    calls,
    dra_call,
)
from tests.harness.device_grpcio import TrioThread
from tests.harness.dra_services import DraTransport
from tests.harness.grpcio_stubs import grpcio_stubs

_CALLS = 16  # at a time; a call that hangs keeps its thread, as NodeWatchResources does
_PLUGINS = {calls.V1: "dra", calls.V1BETA1: "dra_v1beta1"}
_HEALTHS = {calls.HEALTH_V1: "dra_health", calls.HEALTH_V1ALPHA1: "dra_health_v1alpha1"}


def grpcio_transport(stubs: Path) -> DraTransport:
    """Return how a driver serves with grpcio; `stubs` is a directory for sources."""
    return DraTransport(_Peer(stubs).serve)


class _Peer:
    def __init__(self, stubs: Path) -> None:
        self._stubs = {
            service: grpcio_stubs(proto, stubs) for service, proto in (_PLUGINS | _HEALTHS).items()
        }
        self._registering, self._registry = grpcio_stubs("pluginregistration", stubs)

    async def serve(
        self,
        driver: FakeDraDriver,
        endpoint: Path,
        paths: list[Path],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        server = grpc.server(ThreadPoolExecutor(_CALLS, "grpcio"))
        thread = TrioThread()
        for service in driver.services:
            messages, services = self._stubs[service]
            if service in _PLUGINS:
                plugin = _Plugin(driver, service, messages, thread)
                services.add_DRAPluginServicer_to_server(plugin, server)
            else:
                health = _Health(driver, service, messages, thread)
                services.add_DRAResourceHealthServicer_to_server(health, server)
        registrar = _Registrar(driver, str(endpoint), self._registering, thread)
        self._registry.add_RegistrationServicer_to_server(registrar, server)
        for path in paths:
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            server.stop(None)


class _Plugin:
    """DRAPlugin of either version. grpcio wants its methods' names to be those of the calls."""

    def __init__(
        self, driver: FakeDraDriver, service: str, messages: Any, thread: TrioThread
    ) -> None:
        self._driver, self._service = driver, service
        self._messages, self._thread = messages, thread

    def NodePrepareResources(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        call = dra_call(calls.PREPARE, self._service, request)
        answered = self._thread.run(self._driver.prepare, call, context=context)
        response = self._messages.NodePrepareResourcesResponse()
        for uid, found in answered.items():
            result = response.claims[uid]
            if isinstance(found, str):
                result.error = found
            else:
                result.devices.extend(map(self._device, found))
        return response

    def NodeUnprepareResources(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        call = dra_call(calls.UNPREPARE, self._service, request)
        answered = self._thread.run(self._driver.unprepare, call, context=context)
        response = self._messages.NodeUnprepareResourcesResponse()
        for uid, error in answered.items():
            response.claims[uid].error = error  # creates the entry, also without an error
        return response

    def _device(self, device: FakeClaimDevice) -> Any:
        made = self._messages.Device(
            request_names=device.requests,
            pool_name=device.pool,
            device_name=device.name,
            cdi_device_ids=device.cdi_ids or (),
        )
        if device.share_id and self._service == calls.V1:
            made.share_id = device.share_id
        return made


class _Health:
    """DRAResourceHealth of either version."""

    def __init__(
        self, driver: FakeDraDriver, service: str, messages: Any, thread: TrioThread
    ) -> None:
        self._driver, self._service = driver, service
        self._messages, self._thread = messages, thread

    def NodeWatchResources(  # noqa: N802
        self, _request: Any, context: grpc.ServicerContext
    ) -> Iterator[Any]:
        driver = self._driver
        seen = self._thread.run(driver.begin_watch, self._service, context=context)
        while listed := self._thread.run(driver.next_health, seen, context=context):
            seen, healths = listed
            yield self._messages.NodeWatchResourcesResponse(devices=map(self._health, healths))

    def _health(self, health: FakeDeviceHealth) -> Any:
        m = self._messages
        return m.DeviceHealth(
            device=m.DeviceIdentifier(pool_name=health.pool, device_name=health.name),
            health=calls.HEALTH_NUMBERS[health.status],
            health_check_timeout_seconds=health.timeout,
            message=health.message,
        )


class _Registrar:
    """pluginregistration.Registration, for a plugins_registry."""

    def __init__(
        self, driver: FakeDraDriver, endpoint: str, messages: Any, thread: TrioThread
    ) -> None:
        self._driver, self._endpoint = driver, endpoint
        self._messages, self._thread = messages, thread

    def GetInfo(self, _request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._messages.PluginInfo(
            type=calls.PLUGIN_TYPE,
            name=self._driver.name,
            endpoint=self._endpoint,
            supported_versions=list(self._driver.services),
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: Any, _context: grpc.ServicerContext
    ) -> Any:
        error = "" if request.plugin_registered else request.error
        self._thread.run_sync(self._driver.note_registration, error)
        return self._messages.RegistrationStatusResponse()
