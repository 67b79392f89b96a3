"""Checks the entries of a recording before anything is made of them. Pure.

A recording may come from anybody: names become paths in the replay's directory, numbers become
times. Pods and objects pass the rules that manifests pass; everything else is of the types that
`recorder.format` lists. What is not is refused with its field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from lightkube.models.core_v1 import EphemeralContainer, Pod, PodStatus

from kubelet_trio.cri import v1
from kubelet_trio.objects import DOCUMENT_KINDS, KINDS, ApiObject
from kubelet_trio.pods import decode_pod_record
from kubelet_trio.recorder import Entry, Kind, read_body, read_message
from kubelet_trio.sources import (
    FieldError,
    syntax,
    validate_ephemeral,
    validate_object,
    validate_pod,
)

LATEST = 4102444800.0  # Unix s that a recording may speak of: the year 2100
_FARTHEST = 1e9  # s that a monotonic clock may show
_BACK = 60.0  # s by which times may go back: entries of threads come late
LONGEST = 100 * 86400.0  # s of one agent's life
_LEAST_PERIOD = 0.1  # s

_ID = re.compile(r"[A-Za-z0-9][-\w.:]{0,250}", re.ASCII)
_LABELS: Mapping[str, Callable[[str], str | None]] = {
    "io.kubernetes.pod.uid": syntax.pod_uid,
    "io.kubernetes.pod.namespace": syntax.dns_label,
    "io.kubernetes.pod.name": syntax.dns_subdomain,
    "io.kubernetes.container.name": syntax.dns_label,
}
# What an object may not have wrong in a replay, whatever a node without an API server refuses.
_OF_PATHS = (
    *("metadata", "data", "binaryData", "stringData", "spec.hostPath", "spec.local", "spec.nfs"),
)
_PART = re.compile(r"[A-Za-z0-9][-\w.:]{0,252}", re.ASCII)


_OF_PLUGINS = (Kind.PLUGIN, Kind.ASKED, Kind.CHECKPOINT)


class FieldProblemError(ValueError):
    """What is wrong with an entry: the field and why."""


# The bodies, as far as a replay reads them.


class _Start(msgspec.Struct):
    reason: str
    wall: float
    node: str = ""
    instance: str = ""
    settings: dict[str, Any] | None = None


class _Sources(msgspec.Struct):
    all_ready: bool = False
    kept: list[str] | None = None


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    attempt: int = 0


class _Env(msgspec.Struct):
    key: str
    value: bytes = b""


class _Path(msgspec.Struct):
    container_path: str
    host_path: str
    permissions: str = ""
    readonly: bool = False


class _Named(msgspec.Struct):
    name: str


class _Config(msgspec.Struct):
    metadata: _Meta | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    envs: list[_Env] | None = None
    mounts: list[_Path] | None = None
    devices: list[_Path] | None = None
    CDI_devices: list[_Named] | None = None


class _Image(msgspec.Struct):
    image: str = ""


class _Request(msgspec.Struct):
    config: _Config | None = None
    sandbox_config: _Config | None = None
    sandbox: _Config | None = None
    image: _Image | None = None
    container_id: str = ""
    pod_sandbox_id: str = ""
    timeout: int = 0
    grace_period: int = 0
    linux: dict[str, Any] | None = None
    resources: dict[str, Any] | None = None


class _Call(msgspec.Struct):
    call: int
    request: _Request


class _Answer(msgspec.Struct):
    ok: Any = None
    error: str = ""
    text: str = ""
    code: str = ""
    reason: str = ""


class _Listed(msgspec.Struct):
    entries: list[Any]
    gone: list[str]


class _Told(msgspec.Struct):
    status: Any
    pid: int = 0


class _Probe(msgspec.Struct):
    result: Literal["success", "failure", "unknown"]
    container: str = ""
    text: str = ""


class _Volume(msgspec.Struct):
    call: int
    args: list[Any] | None = None
    error: str = ""
    text: str = ""
    errno: int | None = None


class _Clock(msgspec.Struct):
    wall: float


class _Exit(msgspec.Struct):
    pid: int = 0


class _Gap(msgspec.Struct):
    lost: int = 0


class _Mark(msgspec.Struct):
    what: str = ""


class _Step(msgspec.Struct):
    name: str
    attempt: int = 0


class _Plan(msgspec.Struct):
    start: list[_Step] | None = None
    stop_containers: list[_Step] | None = None
    create_sandbox: bool = False
    waiting: dict[str, tuple[str, str]] | None = None
    retry_at: float | None = None
    finished: bool = False


class _Planned(msgspec.Struct):
    plan: _Plan


def check_entry(entry: Entry) -> None:
    """Raise `FieldProblemError` if an entry is none that an agent has written."""
    if not abs(entry.at) <= _FARTHEST:
        raise FieldProblemError(f"time: {entry.at:g} s is no time of a recording")
    check = _CHECKS.get(entry.kind)
    if check is None and entry.kind in _OF_PLUGINS:
        from kubelet_trio.replay.plugin_checks import CHECKS  # it takes its rules from here

        check = CHECKS[entry.kind]
    if check is not None:
        check(entry)


def check_order(before: float, at: float, start: float) -> None:
    """Raise `FieldProblemError` if a time goes back, or is too far from its life's start."""
    if at < before - _BACK:
        raise FieldProblemError(f"time: it goes back by {before - at:.0f} s")
    if at - start > LONGEST:
        raise FieldProblemError(
            f"time: more than {LONGEST / 86400:.0f} days after its agent's start"
        )


def check_made(made: object) -> None:
    """Raise `FieldProblemError` if a call has made something that cannot be an id."""
    if not isinstance(made, str):
        raise FieldProblemError("ok: it must be the id that the call has made")
    _id("ok", made)


def _start(entry: Entry) -> None:
    body = _body(entry, _Start)
    _wall("wall", body.wall)
    if body.node:
        needed("node", body.node, syntax.dns_subdomain)
    settings = body.settings or {}
    if not isinstance(settings.get("node") or {}, dict):
        raise FieldProblemError("settings.node: it must be an object")
    period = settings.get("sync_period")
    if isinstance(period, int | float) and not period >= _LEAST_PERIOD:
        raise FieldProblemError(
            f"settings.sync_period: {period:g} s is less than {_LEAST_PERIOD:g} s"
        )


def _record(entry: Entry) -> None:
    needed("key", entry.key, syntax.pod_uid)
    try:
        record = decode_pod_record(entry.body, entry.key)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise FieldProblemError(str(exc)) from exc
    if record.uid != entry.key:
        raise FieldProblemError(f"uid: {record.uid!r} is not that of its key")
    for name, pod in (("pod", record.pod), ("returns", record.returns)):
        if pod is not None:
            _pod(pod, entry.key, f"{name}.")
    _ephemeral(record.pod, record.added, "added")
    _seconds("start_time", record.start_time)


def _wanted(entry: Entry) -> None:
    source, _, uid = entry.key.rpartition("/")
    if source and not _PART.fullmatch(source):
        raise FieldProblemError(f"key: {source!r} is no name of a source")
    needed("key", uid, syntax.pod_uid)
    if entry.body:
        _pod(converted(_object(entry), Pod), uid)


def _pod(pod: Pod, uid: str, where: str = "") -> None:
    found = pod.metadata.uid if pod.metadata is not None else None
    if found != uid:
        raise FieldProblemError(f"{where}metadata.uid: {found!r} is not that of its key")
    if pod.metadata is not None:
        _texts(pod.metadata.annotations, f"{where}metadata.annotations")
        _texts(pod.metadata.labels, f"{where}metadata.labels")
    _texts(pod.spec.nodeSelector if pod.spec else None, f"{where}spec.nodeSelector")
    _first(validate_pod(pod), where)
    _ephemeral(pod, (pod.spec.ephemeralContainers if pod.spec else None) or (), "ephemeral")


def _texts(values: Mapping[str, object] | None, where: str) -> None:
    """Check a map of texts, which the models leave untyped; validation takes it for granted."""
    for name, value in (values or {}).items():
        if not isinstance(value, str):
            raise FieldProblemError(f"{where}[{name[:80]}]: it must be a text")


def _ephemeral(pod: Pod, containers: Iterable[EphemeralContainer], where: str) -> None:
    for container in containers:
        if pod.spec is not None:
            needed(f"{where}.name", container.name, syntax.dns_label)
            _first(validate_ephemeral(pod.spec, container, where), "")


def _sources(entry: Entry) -> None:
    for uid in _body(entry, _Sources).kept or ():
        needed("kept", uid, syntax.pod_uid)


def _known(entry: Entry) -> None:
    kind = entry.key.partition("/")[0]
    if not entry.body or kind not in KINDS:
        return
    found: ApiObject = converted(_object(entry), KINDS[kind])
    if kind in DOCUMENT_KINDS:
        _first([e for e in validate_object(found) if e.field.startswith(_OF_PATHS)], "")
    else:
        meta = found.metadata
        needed("metadata.name", (meta.name if meta else None) or "", syntax.dns_subdomain)


def _call(entry: Entry) -> None:
    request = _body(entry, _Call).request
    for name in ("container_id", "pod_sandbox_id"):
        if value := getattr(request, name):
            _id(f"request.{name}", value)
    for name in ("config", "sandbox_config", "sandbox"):
        config: _Config | None = getattr(request, name)
        if config is not None:
            _labels(config.labels or {}, f"request.{name}.")
            _identity(config.metadata, f"request.{name}.")


def _identity(meta: _Meta | None, where: str) -> None:
    if meta is not None and meta.uid:
        needed(f"{where}metadata.uid", meta.uid, syntax.pod_uid)
        needed(f"{where}metadata.namespace", meta.namespace, syntax.dns_label)
        needed(f"{where}metadata.name", meta.name, syntax.dns_subdomain)


def _answer(entry: Entry) -> None:
    if not entry.key.isdecimal() or len(entry.key) > 18:
        raise FieldProblemError(f"key: {entry.key[:40]!r} is no number of a call")
    _body(entry, _Answer)


def _read(entry: Entry) -> None:
    method, _, name = entry.key.partition(":")
    body = _body(entry, _Answer)
    if method in ("container_status", "pod_sandbox_status"):
        _id("key", name)
    if body.error:
        return
    if (kind := _LISTED.get(method)) is not None:
        listed = converted(body.ok, _Listed, "ok")
        for index, each in enumerate(listed.entries):
            _runtime_object(each, kind, f"ok.entries[{index}].")
        for object_id in listed.gone:
            _id("ok.gone", object_id)
    elif method == "container_status":
        _runtime_object(converted(body.ok, _Told, "ok").status, v1.ContainerStatus, "ok.status.")
    elif method == "pod_sandbox_status":
        _runtime_object(body.ok, v1.PodSandboxStatus, "ok.")
    elif method == "resource_slices":
        from kubelet_trio.replay.plugin_checks import check_slices

        check_slices(body.ok)
    elif (form := _OTHERS.get(method)) is not None and body.ok is not None:
        _message(body.ok, form, "ok")


_LISTED: Mapping[str, type] = {
    "list_containers": v1.Container,
    "list_pod_sandboxes": v1.PodSandbox,
}
_OTHERS: Mapping[str, Any] = {
    "version": v1.VersionResponse,
    "status": v1.StatusResponse,
    "runtime_config": v1.RuntimeConfigResponse,
    "image_status": v1.Image,
    "list_images": list[v1.Image],
    "exec_sync": dict[Literal["exit_code"], int],
}


def _runtime_object(content: Any, kind: type, where: str) -> None:
    found: Any = _message(content, kind, where)
    _id(f"{where}id", found.id)
    _labels(found.labels, where)
    for name in ("created_at", "started_at", "finished_at"):
        # Containerd says a large negative number for a time that has not come.
        if (moment := getattr(found, name, 0)) > LATEST * 1e9:
            raise FieldProblemError(f"{where}{name}: {moment} ns is no time of a recording")


def _labels(labels: Mapping[str, str], where: str) -> None:
    for key, check in _LABELS.items():
        if value := labels.get(key):
            needed(f"{where}labels[{key}]", value, check)


def _exit(entry: Entry) -> None:
    if entry.key:
        _id("key", entry.key)
    if entry.body:
        _body(entry, _Exit)


def _probe(entry: Entry) -> None:
    _body(entry, _Probe)


def _volume(entry: Entry) -> None:
    _body(entry, _Volume)


def _clock(entry: Entry) -> None:
    _wall("wall", _body(entry, _Clock).wall)


def _gap(entry: Entry) -> None:
    _body(entry, _Gap)


def _plan(entry: Entry) -> None:
    if entry.body and (moment := _body(entry, _Planned).plan.retry_at) is not None:
        _seconds("plan.retry_at", moment)


def _status(entry: Entry) -> None:
    if entry.body:
        converted(_object(entry), PodStatus)


_CHECKS: Mapping[Kind, Callable[[Entry], None]] = {
    Kind.START: _start,
    Kind.RECORD: _record,
    Kind.WANTED: _wanted,
    Kind.SOURCES: _sources,
    Kind.OBJECT: _known,
    Kind.CALL: _call,
    Kind.ANSWER: _answer,
    Kind.READ: _read,
    Kind.EXIT: _exit,
    Kind.PROBE: _probe,
    Kind.VOLUME: _volume,
    Kind.CLOCK: _clock,
    Kind.GAP: _gap,
    Kind.PLAN: _plan,
    Kind.STATUS: _status,
    Kind.MARK: lambda entry: _body(entry, _Mark),
}


def _object(entry: Entry) -> Any:
    return read_body(entry.body)


def _body(entry: Entry, form: type[Any]) -> Any:
    return converted(_object(entry), form)


def converted(content: Any, form: type[Any], where: str = "") -> Any:
    """Return a part of a body as its type. Raises `FieldProblemError`."""
    try:
        return msgspec.convert(content, form, strict=False)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise FieldProblemError(f"{where}: {exc}" if where else str(exc)) from exc


def _message(content: Any, form: Any, where: str) -> Any:
    try:
        return read_message(form, content)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise FieldProblemError(f"{where}: {exc}") from exc


def needed(field: str, value: str, check: Callable[[str], str | None]) -> None:
    """Raise `FieldProblemError` if a value does not pass a check."""
    problem = check(value)
    if problem is not None:
        raise FieldProblemError(f"{field}: {value[:80]!r}: {problem}")


def _id(field: str, value: str) -> None:
    if not _ID.fullmatch(value):
        raise FieldProblemError(f"{field}: {value[:80]!r} is no id of a sandbox or container")


def _first(errors: Iterable[FieldError], where: str) -> None:
    for error in errors:
        raise FieldProblemError(f"{where}{error.field}: {error.message}")


def _seconds(field: str, moment: float) -> None:
    if not abs(moment) <= LATEST:
        raise FieldProblemError(f"{field}: {moment:g} s is no time of a recording")


def _wall(field: str, moment: float) -> None:
    if not 0 <= moment <= LATEST:
        raise FieldProblemError(f"{field}: {moment:g} s is no time of a recording")
