"""The calls of one DRA driver's plugin, each with a deadline, and its answers bounded.

The other end may hang, lie or die at any moment; it may also answer for claims that it was not
asked for, which the caller finds out. Loaded with the first plugin that registers.

Source: pkg/kubelet/cm/dra/plugin/dra_plugin.go.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from kubelet_trio.grpc import (
    CODE_NAMES,
    Channel,
    GRPCError,
    Message,
    Status,
    UnaryUnaryMethod,
    go_text,
)
from kubelet_trio.managers.claims.generated.k8s.io.kubelet.pkg.apis.dra import v1, v1beta1
from kubelet_trio.managers.claims.generated.k8s.io.kubelet.pkg.apis.dra.v1 import (
    client as v1_client,
)
from kubelet_trio.managers.claims.generated.k8s.io.kubelet.pkg.apis.dra.v1beta1 import (
    client as v1beta1_client,
)
from kubelet_trio.managers.claims.services import V1
from kubelet_trio.managers.claims.types import ClaimDevice, ClaimError, ClaimRef
from kubelet_trio.model import Meter

CALL_TIMEOUT = 45.0  # s: defaultClientCallTimeout
MOST_RECEIVED = 4 * 1024 * 1024  # bytes of a message: the default of grpc-go
MOST_RESULT = 256 * 1024  # bytes of a claim's devices, which go into the checkpoint
_MOST_TEXT = 1024  # characters of a driver's error, or of a UID that nobody asked for
_DURATION = "dra_grpc_operations_duration_seconds"

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


class DraPlugin:
    """One instance of a driver behind a channel; a `ClaimDriver`."""

    def __init__(self, driver: str, service: str, channel: Channel, meter: Meter) -> None:
        """`service` is `services.V1` or `services.V1BETA1`: which of the two the plugin serves."""
        self.driver = driver
        self._is_v1 = service == V1
        self._package = "k8s.io.kubelet.pkg.apis.dra." + ("v1" if self._is_v1 else "v1beta1")
        self._channel = channel
        self._meter = meter

    async def prepare(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[ClaimDevice, ...] | str]:
        """Prepare claims: NodePrepareResources. Raises `ClaimError` with grpc-go's text."""
        name = "NodePrepareResources"
        answer: v1.NodePrepareResourcesResponse | v1beta1.NodePrepareResourcesResponse
        if self._is_v1:
            answer = await self._call(
                name,
                v1_client.DraPluginStub(self._channel).node_prepare_resources,
                v1.NodePrepareResourcesRequest(claims=[v1.Claim(**f) for f in _fields(claims)]),
            )
        else:
            answer = await self._call(
                name,
                v1beta1_client.DraPluginStub(self._channel).node_prepare_resources,
                v1beta1.NodePrepareResourcesRequest(
                    claims=[v1beta1.Claim(**f) for f in _fields(claims)]
                ),
            )
        return prepared_claims(answer)

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Undo the preparation: NodeUnprepareResources. Raises `ClaimError` with grpc-go's text."""
        name = "NodeUnprepareResources"
        answer: v1.NodeUnprepareResourcesResponse | v1beta1.NodeUnprepareResourcesResponse
        if self._is_v1:
            answer = await self._call(
                name,
                v1_client.DraPluginStub(self._channel).node_unprepare_resources,
                v1.NodeUnprepareResourcesRequest(claims=[v1.Claim(**f) for f in _fields(claims)]),
            )
        else:
            answer = await self._call(
                name,
                v1beta1_client.DraPluginStub(self._channel).node_unprepare_resources,
                v1beta1.NodeUnprepareResourcesRequest(
                    claims=[v1beta1.Claim(**f) for f in _fields(claims)]
                ),
            )
        return {uid[:_MOST_TEXT]: _error(found) for uid, found in answer.claims.items()}

    async def _call(
        self, name: str, method: UnaryUnaryMethod[RequestT, ReplyT], request: RequestT
    ) -> ReplyT:
        began, code = time.perf_counter(), CODE_NAMES[Status.CANCELLED]
        try:
            answer = await method(request, timeout=CALL_TIMEOUT)
            code = CODE_NAMES[Status.OK]
            return answer
        except GRPCError as exc:
            code = CODE_NAMES[exc.status]
            raise ClaimError(_text(exc)) from exc
        finally:
            labels = self.driver, f"/{self._package}.DRAPlugin/{name}", code
            self._meter.observe(_DURATION, time.perf_counter() - began, labels)


def _text(exc: GRPCError) -> str:
    if exc.status is Status.DEADLINE_EXCEEDED:  # grpc-go's text for a deadline of its own
        exc = GRPCError(exc.status, "context deadline exceeded")
    return go_text(exc)


def _fields(claims: Iterable[ClaimRef]) -> list[dict[str, str]]:
    return [{"namespace": c.namespace, "name": c.name, "uid": c.uid} for c in claims]


def prepared_claims(
    answer: v1.NodePrepareResourcesResponse | v1beta1.NodePrepareResourcesResponse,
) -> dict[str, tuple[ClaimDevice, ...] | str]:
    """Return the devices, or the error, of each claim of an answer."""
    return {uid[:_MOST_TEXT]: _prepared(found) for uid, found in answer.claims.items()}


def _prepared(
    result: v1.NodePrepareResourceResponse | v1beta1.NodePrepareResourceResponse | None,
) -> tuple[ClaimDevice, ...] | str:
    """Return a claim's devices, or the error for it; None: the entry has no value, as nil in Go."""
    if result is None:
        return ()
    if result.error:
        return result.error[:_MOST_TEXT]
    if (size := len(bytes(result))) > MOST_RESULT:
        return f"the driver answered with {size} bytes, expected {MOST_RESULT} at most"
    return tuple(_device(device) for device in result.devices)


def _error(
    result: v1.NodeUnprepareResourceResponse | v1beta1.NodeUnprepareResourceResponse | None,
) -> str:
    """Return the error for a claim; as in Go an entry without a value is none."""
    return result.error[:_MOST_TEXT] if result is not None else ""


def _device(device: v1.Device | v1beta1.Device) -> ClaimDevice:
    return ClaimDevice(
        pool=device.pool_name,
        device=device.device_name,
        requests=tuple(device.request_names),
        cdi_ids=tuple(device.cdi_device_ids),
        share_id=(device.share_id or "") if isinstance(device, v1.Device) else "",
    )
