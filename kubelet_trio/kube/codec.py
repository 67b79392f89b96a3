"""Between an API server's JSON and the models.

Reading is lenient: fields that the models do not know are dropped, as Go's decoder drops
them. Writing follows Go's types: `Time` in whole seconds, `MicroTime` with exactly six
digits, because older servers refuse any other number of them.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
import trio

from kubelet_trio.kube.api import KubeError, KubeUnavailableError, error_of
from kubelet_trio.model import JSON_ERRORS

T = TypeVar("T")

SLICE = 20  # objects decoded between two checkpoints: a few milliseconds at most
_MICRO_TIMES = frozenset({"renewTime", "acquireTime", "eventTime", "lastObservedTime"})


class ListMeta(msgspec.Struct, rename="camel"):
    """What a list says of itself."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class RawList(msgspec.Struct):
    """A list whose items are still bytes. Old servers say `null` for an empty one."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class RawEvent(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class StatusCause(msgspec.Struct):
    """One detail of a `Status`."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, rename="camel"):
    """The details of a `Status`."""

    retry_after_seconds: int = 0
    causes: list[StatusCause] | None = None


class Status(msgspec.Struct):
    """An API server's refusal."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


@functools.cache
def _decoder(model: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(model)


def decode(data: bytes | msgspec.Raw, model: type[T], what: str = "") -> T:
    """Return the object in an answer.

    Raises:
        KubeUnavailableError: this is no such object. `what` was asked for.
    """
    try:
        result: T = _decoder(cast("Any", model)).decode(data)
    except JSON_ERRORS as exc:
        raise KubeUnavailableError(
            f"{what or model.__name__}: the answer is no {model.__name__}: {exc}"
        ) from exc
    return result


async def decode_items(
    items: Sequence[msgspec.Raw], model: type[T], what: str = ""
) -> tuple[T, ...]:
    """Return the objects of a list, letting other tasks run in between."""
    found: list[T] = []
    for start in range(0, len(items), SLICE):
        await trio.lowlevel.checkpoint()
        found += [decode(item, model, what) for item in items[start : start + SLICE]]
    return tuple(found)


def decode_status(data: bytes | msgspec.Raw) -> Status | None:
    """Return a `Status`, or None where the bytes are none."""
    try:
        status: Status = _decoder(Status).decode(data)
    except JSON_ERRORS:
        return None
    return status if status.kind == "Status" else None


def error_from(status: Status, retry_after: float | None = None) -> KubeError:
    """Return the error that a `Status` tells of."""
    if retry_after is None and status.details and status.details.retry_after_seconds > 0:
        retry_after = float(status.details.retry_after_seconds)
    return error_of(status.code, status.reason, status.message, retry_after)


def to_json(obj: Any) -> Any:
    """Return an object, or a patch's body, as plain JSON values."""
    return _plain(msgspec.to_builtins(obj, builtin_types=(datetime.datetime,)))


def encode(obj: Any) -> bytes:
    """Return an object or a patch's body as it goes over the wire."""
    return msgspec.json.encode(to_json(obj))


def from_json(value: Any, model: type[T]) -> T:
    """Return the object that plain JSON values say."""
    try:
        return msgspec.convert(value, model)
    except msgspec.MsgspecError as exc:
        raise KubeUnavailableError(f"no {model.__name__}: {exc}") from exc


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, datetime.datetime):
        return _time(value, micro=key in _MICRO_TIMES)
    if isinstance(value, Mapping):
        return {name: _plain(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, key) for item in value]
    return value


def _time(value: datetime.datetime, *, micro: bool) -> str:
    utc = value.astimezone(datetime.UTC) if value.tzinfo else value
    return utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
