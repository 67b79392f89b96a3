"""The calls of one DRA driver's plugin, each with a deadline, and its answers bounded.

The other end may hang, lie or die at any moment; it may also answer for claims that it was not
asked for, which the caller finds out. Loaded with the first plugin that registers.

Source: pkg/kubelet/cm/dra/plugin/dra_plugin.go.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import trio

from kubelet_trio.grpc import (
    CODE_NAMES,
    Channel,
    GRPCError,
    Message,
    RawMessage,
    Status,
    UnaryUnaryMethod,
    go_text,
)
from kubelet_trio.managers.claims.generated.k8s.io.kubelet.pkg.apis.dra import v1
from kubelet_trio.managers.claims.services import V1
from kubelet_trio.managers.claims.types import ClaimDevice, ClaimError, ClaimRef
from kubelet_trio.managers.wire import list_entries
from kubelet_trio.model import Meter, encode_bytes, parse_message

CALL_TIMEOUT = 45.0  # s: defaultClientCallTimeout
MOST_RECEIVED = 4 * 1024 * 1024  # bytes of a message: the default of grpc-go
# Bytes for one claim, which go into the checkpoint. The API allocates 32 devices to it at most.
MOST_RESULT = 64 * 1024
MOST_CLAIMS = 1000  # of an answer
_MOST_TEXT = 1024  # characters of a driver's error, or of a UID that nobody asked for
_DURATION = "dra_grpc_operations_duration_seconds"
_PREPARE, _UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"

RequestT = TypeVar("RequestT", bound=Message)
Prepared = Mapping[str, tuple[ClaimDevice, ...] | str]


class DraPlugin:
    """One instance of a driver behind a channel; a `ClaimDriver`."""

    def __init__(self, driver: str, service: str, channel: Channel, meter: Meter) -> None:
        """`service` is `services.V1` or `services.V1BETA1`: which of the two the plugin serves."""
        self.driver = driver
        self._has_shares = service == V1  # all else is the same in both versions' messages
        self._channel = channel
        self._path = f"/k8s.io.kubelet.pkg.apis.dra.{service}/"
        self._meter = meter

    async def prepare(self, claims: Sequence[ClaimRef]) -> Prepared:
        """Prepare claims: NodePrepareResources. Raises `ClaimError` with grpc-go's text."""
        request = v1.NodePrepareResourcesRequest(claims=_messages(claims))
        method = UnaryUnaryMethod(
            self._channel, self._path + _PREPARE, v1.NodePrepareResourcesRequest, RawMessage
        )
        answer = await self._timed(_PREPARE, method, request)
        try:
            return await read_prepared(answer, has_shares=self._has_shares)
        except (ValueError, EOFError) as exc:
            raise _not_decoded(exc) from exc

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Undo the preparation: NodeUnprepareResources. Raises `ClaimError` with grpc-go's text."""
        request = v1.NodeUnprepareResourcesRequest(claims=_messages(claims))
        method = UnaryUnaryMethod(
            self._channel, self._path + _UNPREPARE, v1.NodeUnprepareResourcesRequest, RawMessage
        )
        answer = await self._timed(_UNPREPARE, method, request)
        try:
            return await read_unprepared(answer)
        except (ValueError, EOFError) as exc:
            raise _not_decoded(exc) from exc

    async def _timed(
        self, name: str, method: UnaryUnaryMethod[RequestT, RawMessage], request: RequestT
    ) -> bytes:
        began, code = time.perf_counter(), CODE_NAMES[Status.CANCELLED]
        try:
            answer = await method(request, timeout=CALL_TIMEOUT)
            code = CODE_NAMES[Status.OK]
            return answer
        except GRPCError as exc:
            code = CODE_NAMES[exc.status]
            raise ClaimError(_text(exc)) from exc
        finally:
            labels = self.driver, self._path + name, code
            self._meter.observe(_DURATION, time.perf_counter() - began, labels)


async def read_prepared(data: bytes, *, has_shares: bool = True) -> Prepared:
    """Return the devices of each claim of a NodePrepareResourcesResponse, or the error for it.

    Decoded as one message, a large one would keep all other tasks waiting for half a minute.

    Raises ValueError or EOFError if it is no such message, or has too many claims.
    """
    found: dict[str, tuple[ClaimDevice, ...] | str] = {}
    for entry in _claims(data):
        if len(entry) > MOST_RESULT:
            uid = next(list_entries(entry))  # the key of an entry of a map is its first field
            found[uid.decode()[:_MOST_TEXT]] = _too_much(entry)
        else:
            message = parse_message(v1.NodePrepareResourcesResponse, encode_bytes(1, entry))
            for name, result in message.claims.items():
                found[name[:_MOST_TEXT]] = _prepared(result, has_shares=has_shares)
        await trio.lowlevel.checkpoint()
    return found


async def read_unprepared(data: bytes) -> Mapping[str, str]:
    """Return the error for each claim of a NodeUnprepareResourcesResponse; "": none.

    Raises ValueError or EOFError if it is no such message, or has too many claims.
    """
    found: dict[str, str] = {}
    for entry in _claims(data):
        message = parse_message(v1.NodeUnprepareResourcesResponse, encode_bytes(1, entry))
        for name, result in message.claims.items():
            found[name[:_MOST_TEXT]] = _error(result)
        await trio.lowlevel.checkpoint()
    return found


def _claims(data: bytes) -> Iterator[bytes]:
    """Yield the encoded entries of an answer. Raises ValueError."""
    for number, entry in enumerate(list_entries(data)):
        if number >= MOST_CLAIMS:
            raise ValueError(f"more than {MOST_CLAIMS} claims")
        yield entry


def _text(exc: GRPCError) -> str:
    if exc.status is Status.DEADLINE_EXCEEDED:  # grpc-go's text for a deadline of its own
        exc = GRPCError(exc.status, "context deadline exceeded")
    return go_text(exc)


def _not_decoded(exc: Exception) -> ClaimError:
    text = f"grpc: failed to unmarshal the received message: {exc}"
    return ClaimError(go_text(GRPCError(Status.INTERNAL, text)))


def _too_much(entry: bytes) -> str:
    return f"the driver answered with {len(entry)} bytes, expected {MOST_RESULT} at most"


def _messages(claims: Sequence[ClaimRef]) -> list[v1.Claim]:
    return [v1.Claim(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]


def _prepared(
    result: v1.NodePrepareResourceResponse | None, *, has_shares: bool
) -> tuple[ClaimDevice, ...] | str:
    """Return a claim's devices, or the error for it; None: the entry has no value, as nil in Go."""
    if result is None:
        return ()
    if result.error:
        return result.error[:_MOST_TEXT]
    return tuple(
        ClaimDevice(
            pool=device.pool_name,
            device=device.device_name,
            requests=tuple(device.request_names),
            cdi_ids=tuple(device.cdi_device_ids),
            share_id=(device.share_id or "") if has_shares else "",
        )
        for device in result.devices
    )


def _error(result: v1.NodeUnprepareResourceResponse | None) -> str:
    """Return the error for a claim; as in Go an entry without a value is none."""
    return result.error[:_MOST_TEXT] if result is not None else ""
