"""A `FakeCsiDriver` on grpcio: an independent peer, with messages of its own.

Its stubs are made from protos/csi.proto by grpcio-tools when the driver starts. grpcio's threads
hand each call to the driver's Trio thread, and cancel it there when the caller gives up.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import trio

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.csi import (
    CsiCall,
    FakeCsiDriver,
    NodeFeature,
    asked_capability,
    calls,
    csi_call,
)
from tests.harness.grpcio_stubs import grpcio_stubs

_CALLS = 32  # at a time; a call that hangs keeps its thread
_CODES = {code.value[0]: code for code in grpc.StatusCode}


async def serve_grpcio(
    driver: FakeCsiDriver,
    endpoint: Path,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve Identity and Node at a socket until cancelled."""
    endpoint.parent.mkdir(parents=True, exist_ok=True)
    endpoint.unlink(missing_ok=True)
    messages, services = grpcio_stubs("csi", endpoint.parent / "stubs")
    server = grpc.server(ThreadPoolExecutor(_CALLS, "grpcio"))
    servicer = _Servicer(driver, messages)
    services.add_NodeServicer_to_server(servicer, server)
    services.add_IdentityServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{endpoint}")
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        server.start()
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            server.stop(None)


class _Servicer:
    """Both services. grpcio wants its methods' names to be those of the calls."""

    def __init__(self, driver: FakeCsiDriver, messages: Any) -> None:
        self._driver, self._messages = driver, messages
        self._token = trio.lowlevel.current_trio_token()

    def __getattr__(self, method: str) -> Any:
        if not method.startswith("Node"):
            raise AttributeError(method)

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            return self._handle(method, request, context)

        return handle

    def GetPluginInfo(self, _request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802
        name = self._driver.facts.name
        return self._messages.GetPluginInfoResponse(name=name, vendor_version="1")

    def GetPluginCapabilities(self, *_: Any) -> Any:  # noqa: N802
        return self._messages.GetPluginCapabilitiesResponse()

    def Probe(self, *_: Any) -> Any:  # noqa: N802
        return self._messages.ProbeResponse()

    def _handle(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            if method in (calls.GET_INFO, calls.GET_CAPABILITIES):
                return self._facts(method)
            call = _read(method, request)
            answer = trio.from_thread.run(self._serve, call, context, trio_token=self._token)
        except GRPCError as exc:
            context.abort(_CODES[exc.status.value], exc.message or "")
        return self._reply(method, answer)

    async def _serve(self, call: CsiCall, context: grpc.ServicerContext) -> Any:
        with trio.CancelScope() as scope:
            # It is called at the end of every call; to cancel one that has ended does nothing.
            context.add_callback(lambda: self._token.run_sync_soon(scope.cancel))
            return await self._driver.serve(call)
        raise GRPCError(Status.CANCELLED, "the caller gave up")

    def _facts(self, method: str) -> Any:
        m = self._messages
        facts = trio.from_thread.run(self._driver.serve_facts, method, trio_token=self._token)
        if method == calls.GET_INFO:
            return m.NodeGetInfoResponse(
                node_id=facts.node_id,
                max_volumes_per_node=facts.max_volumes,
                accessible_topology=m.Topology(segments=dict(facts.topology)),
            )
        kinds = m.NodeServiceCapability.RPC.Type
        return m.NodeGetCapabilitiesResponse(
            capabilities=[
                m.NodeServiceCapability(rpc=m.NodeServiceCapability.RPC(type=kinds.Value(feature)))
                for feature in sorted(self._driver.rules.features)
            ]
        )

    def _reply(self, method: str, answer: Any) -> Any:
        m = self._messages
        if method == calls.EXPAND:
            return m.NodeExpandVolumeResponse(capacity_bytes=answer)
        if method != calls.STATS:
            return getattr(m, f"{method}Response")()
        reply = m.NodeGetVolumeStatsResponse()
        for unit, suffix in (("BYTES", "bytes"), ("INODES", "inodes")):
            reply.usage.add(
                unit=m.VolumeUsage.Unit.Value(unit),
                total=getattr(answer, f"total_{suffix}"),
                used=getattr(answer, f"used_{suffix}"),
                available=getattr(answer, f"available_{suffix}"),
            )
        if NodeFeature.VOLUME_CONDITION in self._driver.rules.features:
            reply.volume_condition.abnormal = answer.is_abnormal
            reply.volume_condition.message = answer.condition
        return reply


def _read(method: str, request: Any) -> CsiCall:
    if "volume_capability" not in request.DESCRIPTOR.fields_by_name:
        return csi_call(method, request, None)
    if not request.HasField("volume_capability"):
        return csi_call(method, request, None)
    asked = request.volume_capability
    is_block = asked.WhichOneof("access_type") == "block"
    return csi_call(method, request, asked_capability(asked, is_block))
