"""The file cpu_manager_state, in upstream's format to the byte, and whether it fits this machine.

Entries are by pod and container, which is what 1.36 writes without PodLevelResourceManagers. Of the
other two versions one with pod-level entries is read while it has none, and one by container ID
(until 1.17) is refused: at the start no runtime is connected that could tell whose these are.
Source: pkg/kubelet/cm/cpumanager/state, validateState of policy_static.go.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubelet_trio.managers.checksum import (
    GoValue,
    checksum,
    go_json,
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

_PLAIN, _V2 = "state.CPUManagerCheckpoint", "state.CPUManagerCheckpointV2"
_STRINGS, _ENTRIES = "map[string]string", "map[string]map[string]string"


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
    return go_json({**body, "checksum": number})


def restore(data: bytes, manager: CpuManager, file: str = STATE_FILE) -> CpuState:
    """Return the state that a file has, checked against the machine and the reservation.

    `file` is its path, for messages. Raises CpuCheckpointError, whose message says what to do.
    """
    try:
        return check_state(decode_checkpoint(data), manager)
    except CpuCheckpointError as exc:
        raise CpuCheckpointError(advice(exc, file)) from exc


def advice(problem: object, file: str) -> str:
    """Return what is wrong with a state file, and what to do."""
    return (
        f"could not restore state from checkpoint: {problem}, please drain this node and delete "
        f'the CPU manager checkpoint file "{file}" before restarting Kubelet'
    )


def decode_checkpoint(data: bytes, policy: str = STATIC) -> CpuState:
    """Return the state that a file has, unchecked against the machine.

    Raises CpuCheckpointError for a damaged one, and for one of another policy.
    """
    if len(data) > MOST_BYTES:
        raise CpuCheckpointError(f"it has {len(data)} bytes, more than {MOST_BYTES}")
    try:
        found = msgspec.json.decode(data, type=_File)
    except JSON_ERRORS as exc:
        raise CpuCheckpointError(f"it is no checkpoint in JSON: {exc}") from exc
    entries = _entries(found)
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


def _entries(found: _File) -> dict[PodUid, dict[str, str]]:
    """Return the entries by pod, from the version whose checksum fits."""
    by_pod: dict[PodUid, dict[str, str]] = {}
    for uid, entry in (found.entries or {}).items():
        if isinstance(entry, str):
            raise CpuCheckpointError(f"it is of a kubelet before 1.18: {uid} is a container ID")
        by_pod[PodUid(uid)] = entry
    typed = _by_pod(by_pod if found.entries is not None else None)
    values = [_dumped(_PLAIN, found, typed), _dumped(_V2, found, typed)]
    if not by_pod:  # nothing tells an empty file of before 1.18 from a later one
        flat = go_map(_STRINGS, None if found.entries is None else {})
        values.append(_dumped(_PLAIN, found, flat))
    if found.checksum == 0 or found.checksum in map(checksum, values):
        return by_pod
    pods = _pod_entries(found.pod_entries)
    if found.checksum != checksum(_dumped(_PLAIN, found, typed, pods)):
        raise CpuCheckpointError("checkpoint is corrupted")
    if found.pod_entries:
        raise CpuCheckpointError("it has pod-level entries, which need PodLevelResourceManagers")
    return by_pod


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
