"""Translates gRPC errors into CRI errors, and refuses incomplete answers.

The fields that an answer must set are those that the Go kubelet's CRI client checks
(k8s.io/cri-client).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from kubelet_trio.cri.errors import (
    ImagePullError,
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UnsupportedCallError,
)
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.remote.wire import entries_of, fields_of, id_of, number, sized
from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.model import JSON_ERRORS, parse_message

_ERRORS: dict[Status, type[RuntimeCallError]] = {
    Status.UNAVAILABLE: RuntimeUnavailableError,
    Status.DEADLINE_EXCEEDED: RuntimeTimeoutError,
    Status.NOT_FOUND: RuntimeObjectNotFoundError,
    Status.UNIMPLEMENTED: UnsupportedCallError,
}
# Reasons with which a runtime may begin the message of a failed pull, by CRI's convention.
_PULL_REASONS = ("RegistryUnavailable", "SignatureValidationFailed")


@contextmanager
def runtime_errors(call: str) -> Iterator[None]:
    """Raise gRPC errors as CRI errors, with their cause."""
    try:
        yield
    except GRPCError as exc:
        raise runtime_error(call, exc) from exc


def runtime_error(call: str, exc: GRPCError) -> RuntimeCallError:
    """Return the CRI error of a gRPC error."""
    kind = _ERRORS.get(exc.status, RuntimeCallError)
    return kind(call, exc.message or "", code=_go_name(exc.status))


def is_unsupported(error: RuntimeCallError) -> bool:
    """Return whether an error of an optional call means that the runtime does not implement it."""
    if isinstance(error, UnsupportedCallError):
        return True
    # containerd 2.2 has UpdatePodSandboxResources, and answers "not implemented yet".
    return error.code == _go_name(Status.UNKNOWN) and "not implemented" in error.message


@contextmanager
def pull_errors() -> Iterator[None]:
    """Raise gRPC errors of a pull as `ImagePullError`."""
    try:
        yield
    except GRPCError as exc:
        message = exc.message or ""
        code = "" if exc.status is Status.UNKNOWN else _go_name(exc.status)
        # The Go kubelet finds the reason only at the start of the error's text, and with any status
        # but Unknown that text begins with "rpc error: code = ...".
        reasons = [] if code else [reason for reason in _PULL_REASONS if message.startswith(reason)]
        reason = reasons[0] if reasons else "ErrImagePull"
        raise ImagePullError("PullImage", message, reason, code=code) from exc


@contextmanager
def malformed_answer(call: str) -> Iterator[None]:
    """Raise errors of decoding an answer as a `RuntimeCallError`."""
    try:
        yield
    except (ValueError, EOFError) as exc:
        raise RuntimeCallError(call, f"the answer does not decode: {exc}") from exc


def _go_name(status: Status) -> str:
    """Return the name that Go prints for a status code."""
    if status is Status.CANCELLED:
        return "Canceled"  # Go spells it with one l
    return "".join(word.capitalize() for word in status.name.split("_"))


class _ContainerInfo(msgspec.Struct):
    pid: int = 0


_decode_info = msgspec.json.Decoder(_ContainerInfo).decode


def container_pid(info: dict[str, str]) -> int:
    """Return the PID in a verbose ContainerStatus of containerd or CRI-O; 0 if it has none."""
    text = info.get("info", "")
    if not text:
        return 0
    try:
        return _decode_info(text).pid
    except JSON_ERRORS:
        return 0  # another runtime's format; without a PID the relist finds the exit


class _RuntimeConfig(msgspec.Struct):
    """The `config` in a verbose Status; containerd 1 has the name at its top level."""

    sandbox_image: str = msgspec.field(default="", name="sandboxImage")


_decode_config = msgspec.json.Decoder(_RuntimeConfig).decode


def sandbox_image(info: dict[str, str]) -> str:
    """Return the sandbox image that a verbose Status names; "" if it names none.

    Runtimes that do not report it pin the image instead, which ListImages shows.
    """
    try:
        return _decode_config(info.get("config") or "{}").sandbox_image
    except JSON_ERRORS:
        return ""  # another runtime's format


def checked_version(version: v1.VersionResponse) -> v1.VersionResponse:
    fields = ("version", "runtime_name", "runtime_api_version", "runtime_version")
    _require("Version", {name: getattr(version, name) for name in fields})
    return version


def checked_status(answer: v1.StatusResponse) -> v1.StatusResponse:
    if answer.status is None or len(answer.status.conditions) < 2:
        raise RuntimeCallError("Status", "RuntimeReady or NetworkReady is not set")
    return answer


def checked_sandbox_status(status: v1.PodSandboxStatus | None) -> v1.PodSandboxStatus:
    if status is None:
        raise RuntimeCallError("PodSandboxStatus", "the answer has no status")
    metadata = status.metadata or v1.PodSandboxMetadata()
    _require(
        "PodSandboxStatus",
        {
            "id": status.id,
            "metadata.name": metadata.name,
            "metadata.namespace": metadata.namespace,
            "metadata.uid": metadata.uid,
            "created_at": status.created_at,
        },
    )
    return status


def checked_container_status(status: v1.ContainerStatus | None) -> v1.ContainerStatus:
    if status is None:
        raise RuntimeCallError("ContainerStatus", "the answer has no status")
    _require(
        "ContainerStatus",
        {
            "id": status.id,
            "metadata.name": status.metadata.name if status.metadata else "",
            "created_at": status.created_at,
            "image": status.image.image if status.image else "",
            "image_ref": status.image_ref,
        },
    )
    return status


def checked_image(image: v1.Image | None) -> v1.Image | None:
    if image is not None:
        _require("ImageStatus", {"id": image.id, "size": image.size})
    return image


def required(call: str, name: str, value: str) -> str:
    """Return a value that an answer must set. Raises `RuntimeCallError` if it is empty."""
    _require(call, {name: value})
    return value


def pulled_ref(image: v1.ImageSpec, ref: str) -> str:
    """Return the ref in the answer to a pull. Raises `ImagePullError` if it is empty."""
    if not ref:
        raise ImagePullError("PullImage", f'imageRef of image "{image.image}" is not set')
    return ref


def _require(call: str, fields: dict[str, str | int]) -> None:
    missing = [name for name, value in fields.items() if not value]
    if missing:
        raise RuntimeCallError(call, f"the answer does not set {', '.join(missing)}")


def parse_stats(data: bytes, *, layers_only: bool) -> list[v1.ContainerStats]:
    """Decode the answer to ListContainerStats. Raises ValueError or EOFError if it is none."""
    if not layers_only:
        return parse_message(v1.ListContainerStatsResponse, data).stats
    # With labels and counters this takes six times as long, for each scrape.
    return [_layer_stats(fields_of(entry)) for entry in entries_of(data)]


def _layer_stats(fields: Mapping[int, int | bytes]) -> v1.ContainerStats:
    """Return the id and the writable layer of a ContainerStats. Raises ValueError."""
    # In one go: betterproto2 takes as long to set a field as to make a message.
    return v1.ContainerStats(
        attributes=v1.ContainerAttributes(id=id_of(sized(fields, 1))) if 1 in fields else None,
        writable_layer=_layer(fields_of(sized(fields, 4))) if 4 in fields else None,
    )


def _layer(fields: Mapping[int, int | bytes]) -> v1.FilesystemUsage:
    return v1.FilesystemUsage(
        timestamp=number(fields, 1),
        used_bytes=_wrapped(fields, 3),
        inodes_used=_wrapped(fields, 4),
    )


def _wrapped(fields: Mapping[int, int | bytes], field: int) -> v1.UInt64Value | None:
    if field not in fields:
        return None
    return v1.UInt64Value(value=number(fields_of(sized(fields, field)), 1))
