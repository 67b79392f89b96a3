"""Converts between an API server's JSON and the models.

Reading ignores fields that the models do not have, as Go's decoder does. Writing follows Go's
types: `Time` in whole seconds, `MicroTime` with six digits.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
import trio

from kubelet_trio.kube.errors import KubeError, KubeUnavailableError, error_of
from kubelet_trio.model import JSON_ERRORS

T = TypeVar("T")

SLICE = 20  # objects decoded between two checkpoints: a few milliseconds at most
# Fields of type MicroTime. Older servers refuse any other number of digits than six.
_MICRO_TIMES = frozenset({"renewTime", "acquireTime", "eventTime", "lastObservedTime"})
# Lists that the models require, and that the server sends as `null` if they are empty: Go's
# encoding of a nil slice without `omitempty`.
_NULL_LISTS: Mapping[str, tuple[str, str]] = {"CSINode": ("spec", "drivers")}


class ListMeta(msgspec.Struct, rename="camel"):
    """The metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class RawList(msgspec.Struct):
    """A list whose items are not decoded yet. Old servers send `null` for no items."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class RawEvent(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class StatusCause(msgspec.Struct):
    """One cause of a refusal."""

    reason: str = ""


class StatusDetails(msgspec.Struct, rename="camel"):
    """The details of a `Status` object."""

    retry_after_seconds: int = 0
    causes: list[StatusCause] | None = None


class ApiStatus(msgspec.Struct):
    """The body of an API server's refusal."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


@functools.cache
def _decoder(model: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(model)


def decode(data: bytes | msgspec.Raw, model: type[T], what: str = "") -> T:
    """Return the object in an answer to `what`, the request.

    Raises:
        KubeUnavailableError: the answer is not such an object.
    """
    try:
        if model.__name__ in _NULL_LISTS:
            return msgspec.convert(_without_null(msgspec.json.decode(data), model), model)
        result: T = _decoder(cast("Any", model)).decode(data)
    except JSON_ERRORS as exc:
        raise KubeUnavailableError(
            f"{what or model.__name__}: the answer is no {model.__name__}: {exc}"
        ) from exc
    return result


def _without_null(value: Any, model: type) -> Any:
    """Return an object with an empty list where the server's Go has sent `null`."""
    if model.__name__ not in _NULL_LISTS or not isinstance(value, dict):
        return value
    part, field = _NULL_LISTS[model.__name__]
    inner = value.get(part)
    if not isinstance(inner, dict) or inner.get(field) is not None:
        return value
    return {**value, part: {**inner, field: []}}


async def decode_items(
    items: Sequence[msgspec.Raw], model: type[T], what: str = ""
) -> tuple[T, ...]:
    """Return the objects of a list; a large one does not block other tasks."""
    found: list[T] = []
    for start in range(0, len(items), SLICE):
        await trio.lowlevel.checkpoint()
        found += [decode(item, model, what) for item in items[start : start + SLICE]]
    return tuple(found)


def decode_status(data: bytes | msgspec.Raw) -> ApiStatus | None:
    """Return the `Status` object in an answer; None if it is something else."""
    try:
        status: ApiStatus = _decoder(ApiStatus).decode(data)
    except JSON_ERRORS:
        return None
    return status if status.kind == "Status" else None


def error_from(status: ApiStatus, retry_after: float | None = None) -> KubeError:
    """Return the error for a `Status` object."""
    details = status.details or StatusDetails()
    if retry_after is None and details.retry_after_seconds > 0:
        retry_after = float(details.retry_after_seconds)
    causes = (cause.reason for cause in details.causes or ())
    return error_of(status.code, status.reason, status.message, retry_after, causes)


def to_json(obj: Any) -> Any:
    """Return an object, or a patch's body, as plain JSON values."""
    return _plain(msgspec.to_builtins(obj, builtin_types=(datetime.datetime,)))


def encode(obj: Any) -> bytes:
    """Return an object or a patch's body as JSON."""
    return msgspec.json.encode(to_json(obj))


def from_json(value: Any, model: type[T]) -> T:
    """Return the object of plain JSON values. Raises `KubeUnavailableError`."""
    try:
        return msgspec.convert(_without_null(value, model), model)
    except msgspec.MsgspecError as exc:
        raise KubeUnavailableError(f"no {model.__name__}: {exc}") from exc


def _plain(value: Any, key: str = "") -> Any:
    # The parent's key decides the format: models have one type for Time and MicroTime.
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
