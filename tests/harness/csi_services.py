"""A `FakeCsiDriver` on our gRPC server: Identity, Node and pluginregistration.Registration."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from kubelet_trio.grpc import Server
from kubelet_trio.plugins.generated import pluginregistration as registration
from kubelet_trio.plugins.generated.pluginregistration.server import RegistrationBase
from kubelet_trio.testing.csi import (
    CsiCall,
    FakeCsiDriver,
    NodeFeature,
    StorageUsage,
    asked_capability,
    calls,
    csi_call,
)
from kubelet_trio.volumes.csi.generated.csi import v1
from kubelet_trio.volumes.csi.generated.csi.v1.server import IdentityBase, NodeBase


async def serve_csi(
    driver: FakeCsiDriver,
    listeners: Iterable[trio.abc.Listener[Any]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a driver and its registrar until cancelled, or until a fault kills the driver.

    Both share the listeners: a caller asks for what it needs.
    """
    server = csi_server(driver)
    async with trio.open_nursery() as nursery:
        await nursery.start(_live, driver, nursery.cancel_scope)
        await nursery.start(server.serve, list(listeners))
        task_status.started()


def csi_server(driver: FakeCsiDriver) -> Server:
    """Return a server of a driver, which must run, and its registrar."""
    return Server([_Identity(driver), _Node(driver), _Registrar(driver)])


async def serve_registration(
    driver: FakeCsiDriver, listeners: Iterable[trio.abc.Listener[Any]]
) -> None:
    """Serve a driver's registrar alone, until cancelled."""
    await Server([_Registrar(driver)]).serve(list(listeners))


async def _live(
    driver: FakeCsiDriver, all_of_it: trio.CancelScope, task_status: trio.TaskStatus[None]
) -> None:
    await driver.run(task_status=task_status)
    all_of_it.cancel()


class _Identity(IdentityBase):
    def __init__(self, driver: FakeCsiDriver) -> None:
        self._driver = driver

    async def get_plugin_info(self, request: v1.GetPluginInfoRequest) -> v1.GetPluginInfoResponse:
        return v1.GetPluginInfoResponse(name=self._driver.facts.name, vendor_version="1")

    async def get_plugin_capabilities(
        self, request: v1.GetPluginCapabilitiesRequest
    ) -> v1.GetPluginCapabilitiesResponse:
        return v1.GetPluginCapabilitiesResponse()

    async def probe(self, request: v1.ProbeRequest) -> v1.ProbeResponse:
        return v1.ProbeResponse(ready=v1.BoolValue(value=True))


class _Node(NodeBase):
    def __init__(self, driver: FakeCsiDriver) -> None:
        self._driver = driver

    async def node_stage_volume(
        self, request: v1.NodeStageVolumeRequest
    ) -> v1.NodeStageVolumeResponse:
        await self._driver.serve(_read(calls.STAGE, request))
        return v1.NodeStageVolumeResponse()

    async def node_unstage_volume(
        self, request: v1.NodeUnstageVolumeRequest
    ) -> v1.NodeUnstageVolumeResponse:
        await self._driver.serve(_read(calls.UNSTAGE, request))
        return v1.NodeUnstageVolumeResponse()

    async def node_publish_volume(
        self, request: v1.NodePublishVolumeRequest
    ) -> v1.NodePublishVolumeResponse:
        await self._driver.serve(_read(calls.PUBLISH, request))
        return v1.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        await self._driver.serve(_read(calls.UNPUBLISH, request))
        return v1.NodeUnpublishVolumeResponse()

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        usage: StorageUsage = await self._driver.serve(_read(calls.STATS, request))
        condition = None
        if NodeFeature.VOLUME_CONDITION in self._driver.rules.features:
            condition = v1.VolumeCondition(abnormal=usage.is_abnormal, message=usage.condition)
        return v1.NodeGetVolumeStatsResponse(
            usage=[
                v1.VolumeUsage(
                    available=usage.available_bytes,
                    total=usage.total_bytes,
                    used=usage.used_bytes,
                    unit=v1.VolumeUsageUnit.BYTES,
                ),
                v1.VolumeUsage(
                    available=usage.available_inodes,
                    total=usage.total_inodes,
                    used=usage.used_inodes,
                    unit=v1.VolumeUsageUnit.INODES,
                ),
            ],
            volume_condition=condition,
        )

    async def node_expand_volume(
        self, request: v1.NodeExpandVolumeRequest
    ) -> v1.NodeExpandVolumeResponse:
        size = await self._driver.serve(_read(calls.EXPAND, request))
        return v1.NodeExpandVolumeResponse(capacity_bytes=size)

    async def node_get_capabilities(
        self, request: v1.NodeGetCapabilitiesRequest
    ) -> v1.NodeGetCapabilitiesResponse:
        await self._driver.serve_facts(calls.GET_CAPABILITIES)
        kinds = v1.NodeServiceCapabilityRpcType
        return v1.NodeGetCapabilitiesResponse(
            capabilities=[
                v1.NodeServiceCapability(rpc=v1.NodeServiceCapabilityRpc(type=kinds[feature]))
                for feature in sorted(self._driver.rules.features)
            ]
        )

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        facts = await self._driver.serve_facts(calls.GET_INFO)
        return v1.NodeGetInfoResponse(
            node_id=facts.node_id,
            max_volumes_per_node=facts.max_volumes,
            accessible_topology=v1.Topology(segments=dict(facts.topology)),
        )


class _Registrar(RegistrationBase):
    def __init__(self, driver: FakeCsiDriver) -> None:
        self._driver = driver

    async def get_info(self, request: registration.InfoRequest) -> registration.PluginInfo:
        facts = self._driver.facts
        return registration.PluginInfo(
            type=facts.plugin_type,
            name=facts.name,
            endpoint=facts.endpoint,
            supported_versions=list(facts.versions),
        )

    async def notify_registration_status(
        self, request: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        self._driver.note_registration(is_registered=request.plugin_registered, error=request.error)
        return registration.RegistrationStatusResponse()


def _read(method: str, request: Any) -> CsiCall:
    asked = getattr(request, "volume_capability", None)
    if asked is None:
        return csi_call(method, request, None)
    return csi_call(method, request, asked_capability(asked, asked.block is not None))


@asynccontextmanager
async def serving(driver: FakeCsiDriver, path: Path) -> AsyncIterator[None]:
    """Serve a driver and its registration on one socket, removed at the end of the block."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_csi, driver, [listener])
            yield
            nursery.cancel_scope.cancel()
    path.unlink(missing_ok=True)
