"""The file cpu_manager_state, in upstream's format to the byte, and whether it fits this machine.

Three versions are read: entries by container ID (until 1.17), entries by pod and container (what
1.36 writes without PodLevelResourceManagers, and what is written here), and with pod-level entries.
Source: pkg/kubelet/cm/cpumanager/state, validateState of policy_static.go.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubelet_trio.managers.checksum import (
    GoValue,
    checksum,
    go_map,
    go_pointer,
    go_struct,
    go_value,
)
from kubelet_trio.managers.cpus.errors import CpuCheckpointError
from kubelet_trio.managers.cpus.manager import CpuManager
from kubelet_trio.managers.cpus.masks import format_mask, parse_mask
from kubelet_trio.managers.cpus.state import CpuState
from kubelet_trio.managers.types import nodes_of
from kubelet_trio.model import JSON_ERRORS, PodUid

STATE_FILE = "cpu_manager_state"
NONE, STATIC = "none", "static"
MOST_BYTES = 1 << 20  # of the file; thousands of containers fit in

ContainerRefs = Mapping[str, tuple[PodUid, str]]  # container ID to pod and container name

_PLAIN, _V2 = "state.CPUManagerCheckpoint", "state.CPUManagerCheckpointV2"
_STRINGS, _ENTRIES = "map[string]string", "map[string]map[string]string"

# What Go's JSON encoder escapes and others do not.
_GO_ESCAPES = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


class _PodEntry(msgspec.Struct):
    cpus: str = msgspec.field(default="", name="cpuSet")


class _File(msgspec.Struct):
    policy: str = msgspec.field(default="", name="policyName")
    shared: str = msgspec.field(default="", name="defaultCpuSet")
    entries: dict[str, dict[str, str] | str] | None = msgspec.field(default_factory=dict)
    pod_entries: dict[str, _PodEntry] | None = msgspec.field(
        default_factory=dict, name="podEntries"
    )
    checksum: int = 0


def encode_checkpoint(state: CpuState, policy: str = STATIC) -> bytes:
    """Return the file's bytes."""
    entries = {
        uid: {name: format_mask(cpus) for name, cpus in sorted(pod.items())}
        for uid, pod in sorted(state.exclusive.items())
    }
    shared = format_mask(state.shared)
    number = checksum(_dump(_PLAIN, policy, shared, _by_pod(entries)))
    body: dict[str, object] = {"policyName": policy, "defaultCpuSet": shared}
    if entries:
        body["entries"] = entries
    text = msgspec.json.encode({**body, "checksum": number})
    for plain, escaped in _GO_ESCAPES:
        text = text.replace(plain, escaped)
    return text


def restore(
    data: bytes,
    manager: CpuManager,
    file: str = STATE_FILE,
    containers: ContainerRefs | None = None,
) -> CpuState:
    """Return the state that a file has, checked against the machine and the reservation.

    `file` is its path, for messages; `containers` are those of the runtime, for a file of before
    1.18. Raises CpuCheckpointError, whose message says what to do.
    """
    try:
        return check_state(decode_checkpoint(data, STATIC, containers), manager)
    except CpuCheckpointError as exc:
        raise CpuCheckpointError(advice(exc, file)) from exc


def advice(problem: object, file: str) -> str:
    """Return what is wrong with a state file, and what to do."""
    return (
        f"could not restore state from checkpoint: {problem}, please drain this node and delete "
        f'the CPU manager checkpoint file "{file}" before restarting Kubelet'
    )


def decode_checkpoint(
    data: bytes, policy: str = STATIC, containers: ContainerRefs | None = None
) -> CpuState:
    """Return the state that a file has, unchecked against the machine.

    Raises CpuCheckpointError for a damaged one, and for one of another policy.
    """
    if len(data) > MOST_BYTES:
        raise CpuCheckpointError(f"it has {len(data)} bytes, more than {MOST_BYTES}")
    try:
        found = msgspec.json.decode(data, type=_File)
    except JSON_ERRORS as exc:
        raise CpuCheckpointError(f"it is no checkpoint in JSON: {exc}") from exc
    entries = _entries(found, containers or {})
    if found.policy != policy:
        raise CpuCheckpointError(
            f'configured policy "{policy}" differs from state checkpoint policy "{found.policy}"'
        )
    shared = _cpus(found.shared, f'default cpu set "{found.shared}"')
    exclusive: dict[PodUid, dict[str, int]] = {}
    for uid, pod in entries.items():
        exclusive[uid] = {
            name: _cpus(text, f'cpuset "{text}" for container "{name}" in pod "{uid}"')
            for name, text in pod.items()
        }
    return CpuState(shared, {uid: pod for uid, pod in exclusive.items() if pod})


def check_state(state: CpuState, manager: CpuManager) -> CpuState:
    """Return a state if it fits the machine and the reservation; an empty one is filled.

    Raises CpuCheckpointError.
    """
    if not state.shared and not state.exclusive:
        return manager.initial()
    # With strict-cpu-reservation all CPUs can be given away. Upstream then refuses to start again.
    if not state.shared and manager.known & manager.reserved:
        raise CpuCheckpointError("default cpuset cannot be empty")
    shared = format_mask(state.shared)
    reserved, in_shared = manager.reserved, manager.reserved & state.shared
    if manager.options.strict_reservation and in_shared:
        raise CpuCheckpointError(
            f'some of strictly reserved cpus: "{format_mask(in_shared)}" are present in '
            f'defaultCpuSet: "{shared}"'
        )
    if not manager.options.strict_reservation and in_shared != reserved:
        raise CpuCheckpointError(
            f'not all reserved cpus: "{format_mask(reserved)}" are present in '
            f'defaultCpuSet: "{shared}"'
        )
    for uid, pod in state.exclusive.items():
        for name, cpus in pod.items():
            if cpus & state.shared:
                raise CpuCheckpointError(
                    f'pod: {uid}, container: {name} cpuset: "{format_mask(cpus)}" overlaps with '
                    f'default cpuset "{shared}"'
                )
    if state.shared | state.given != manager.known:
        raise CpuCheckpointError(
            f'current set of available CPUs "{format_mask(manager.known)}" doesn\'t match with '
            f'CPUs in state "{format_mask(state.shared | state.given)}"'
        )
    return state


def _entries(found: _File, containers: ContainerRefs) -> dict[PodUid, dict[str, str]]:
    """Return the entries by pod, from the version whose checksum fits."""
    raw = found.entries
    by_pod = {PodUid(k): v for k, v in (raw or {}).items() if isinstance(v, dict)}
    by_id = {key: text for key, text in (raw or {}).items() if isinstance(text, str)}
    if not by_id:
        typed = _by_pod(by_pod if raw is not None else None)
        if found.checksum in (
            0,
            *(checksum(_dumped(name, found, typed)) for name in (_PLAIN, _V2)),
        ):
            return by_pod
        pods = _pod_entries(found.pod_entries)
        if found.checksum == checksum(_dumped(_PLAIN, found, typed, pods)):
            if found.pod_entries:
                raise CpuCheckpointError(
                    "it has pod-level entries, which need PodLevelResourceManagers"
                )
            return by_pod
    if not by_pod:
        flat = go_map(_STRINGS, None if raw is None else _go_strings(by_id))
        if found.checksum in (0, checksum(_dumped(_PLAIN, found, flat))):
            return _moved(by_id, containers)
    raise CpuCheckpointError("checkpoint is corrupted")


def _moved(by_id: Mapping[str, str], containers: ContainerRefs) -> dict[PodUid, dict[str, str]]:
    """Return entries of container IDs as those of pods and containers."""
    moved: dict[PodUid, dict[str, str]] = {}
    for container_id, text in by_id.items():
        if container_id not in containers:
            raise CpuCheckpointError(
                f"containerID '{container_id}' not found in initial containers list"
            )
        uid, name = containers[container_id]
        moved.setdefault(uid, {})[name] = text
    return moved


def _cpus(text: str, what: str) -> int:
    try:
        return parse_mask(text)
    except ValueError as exc:
        raise CpuCheckpointError(f"could not parse {what}: {exc}") from exc


def _dumped(name: str, found: _File, entries: GoValue, pods: GoValue | None = None) -> GoValue:
    return _dump(name, found.policy, found.shared, entries, pods)


def _dump(
    name: str, policy: str, shared: str, entries: GoValue, pods: GoValue | None = None
) -> GoValue:
    """Return upstream's value of a checkpoint, whose checksum it carries."""
    fields = {
        "PolicyName": go_value("string", policy),
        "DefaultCPUSet": go_value("string", shared),
        "Entries": entries,
        **({} if pods is None else {"PodEntries": pods}),
        "Checksum": go_value("checksum.Checksum", 0),
    }
    return go_pointer(go_struct(name, fields))


def _by_pod(entries: Mapping[PodUid, Mapping[str, str]] | None) -> GoValue:
    if entries is None:
        return go_map(_ENTRIES, None)
    typed = {str(uid): go_map(_STRINGS, _go_strings(pod)) for uid, pod in entries.items()}
    return go_map(_ENTRIES, typed)


def _go_strings(texts: Mapping[str, str]) -> dict[str, GoValue]:
    return {key: go_value("string", text) for key, text in texts.items()}


def _pod_entries(entries: Mapping[str, _PodEntry] | None) -> GoValue:
    """Return pod-level entries: upstream has their CPUs as a set of numbers."""
    if entries is None:
        return go_map("state.PodCPUAssignments", None)
    return go_map(
        "state.PodCPUAssignments",
        {
            uid: _pod_entry(_cpus(e.cpus, f'cpuset "{e.cpus}" of pod "{uid}"'))
            for uid, e in entries.items()
        },
    )


def _pod_entry(cpus: int) -> GoValue:
    elements = {cpu: go_struct("struct {}", {}) for cpu in nodes_of(cpus)}
    cpuset = go_struct("cpuset.CPUSet", {"elems": go_map("map[int]struct {}", elements)})
    return go_struct("state.PodEntry", {"CPUSet": cpuset})
