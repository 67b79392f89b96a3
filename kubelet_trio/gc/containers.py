"""Decide which dead containers and old sandboxes to remove. Pure.

Source: pkg/kubelet/kuberuntime/kuberuntime_gc.go (1.36). A pod worker removes everything of a
terminated pod; this module is for running pods whose containers were restarted many times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kubelet_trio.model import ContainerRecord, ContainerState, PodUid, RuntimePod, SandboxRecord

# Seconds for which the newest instance of a wanted container stays after its exit, whatever the
# limits: the pod worker must read its exit code first. The Go kubelet has no such rule.
SETTLE = 60.0


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """The limits, of which a negative one means no limit, and what is collected."""

    min_age: float = 0.0  # seconds since creation before a dead container may be removed
    max_per_container: int = 1  # dead instances of each container of each pod
    max_total: int = -1  # dead containers of the node
    clears_unknown_logs: bool = True  # log directories of unknown pods are removed, too

    def kept(self) -> int | None:
        """Return how many dead instances of a container its pod worker keeps at least."""
        return None if self.max_per_container < 0 else max(1, self.max_per_container)


def containers_to_remove(
    pods: Iterable[RuntimePod],
    policy: ContainerPolicy,
    now: float,
    has_ended: Callable[[PodUid], bool] = lambda _uid: False,
    *,
    all_unused: bool = False,
) -> list[ContainerRecord]:
    """Return the dead containers to remove, oldest first.

    Args:
        pods: the runtime's containers and sandboxes.
        policy: the limits.
        now: Unix seconds.
        has_ended: whether a pod has terminated.
        all_unused: remove every container of terminated pods (under disk pressure).
    """
    unused: list[ContainerRecord] = []
    units: list[list[ContainerRecord]] = []
    for pod in pods:
        ended = has_ended(pod.uid)
        for unit in _units(pod, policy, now, ended=ended):
            if all_unused and ended:
                unused += unit
            else:
                units.append(unit)
    removed, units = _trim(units, policy.max_per_container)
    removed += _trim_total(units, policy.max_total)
    return sorted([*unused, *removed], key=lambda c: c.created_at)


def _units(
    pod: RuntimePod, policy: ContainerPolicy, now: float, *, ended: bool
) -> list[list[ContainerRecord]]:
    """Return the pod's dead containers that may be removed, by name, newest first."""
    units: dict[str, list[ContainerRecord]] = {}
    for record in pod.containers:
        if record.state is not ContainerState.EXITED or now - record.created_at < policy.min_age:
            continue
        is_last = pod.latest(record.name) is record and not ended
        if is_last and now - record.finished_at < SETTLE:
            continue
        units.setdefault(record.name, []).append(record)
    return list(units.values())


def _trim(
    units: Sequence[list[ContainerRecord]], limit: int
) -> tuple[list[ContainerRecord], list[list[ContainerRecord]]]:
    """Take all but the newest `limit` of each unit; return them, and the units without them."""
    if limit < 0:
        return [], list(units)
    taken = [record for unit in units for record in unit[limit:]]
    return taken, [unit[:limit] for unit in units if unit[:limit]]


def _trim_total(units: Sequence[list[ContainerRecord]], limit: int) -> list[ContainerRecord]:
    """Take evenly from all units down to the limit, then the oldest of all units."""
    excess = sum(map(len, units)) - limit
    if limit < 0 or excess <= 0 or not units:
        return []
    # evictContainers: an equal number stays in each unit, at least one.
    taken, left = _trim(units, max(1, limit // len(units)))
    rest = sorted((c for unit in left for c in unit), key=lambda c: c.created_at)
    return taken + rest[: max(0, len(rest) - limit)]


def sandboxes_to_remove(
    pods: Iterable[RuntimePod],
    has_ended: Callable[[PodUid], bool] = lambda _uid: False,
    *,
    all_unused: bool = False,
) -> list[SandboxRecord]:
    """Return the sandboxes to remove: those that are not ready and have no container.

    The newest of each pod stays, unless `all_unused` is set and the pod has terminated.
    """
    removed: list[SandboxRecord] = []
    for pod in pods:
        holding = {container.sandbox_id for container in pod.containers}
        newest_first = sorted(pod.sandboxes, key=lambda s: s.created_at, reverse=True)
        # evictSandboxes: the latest one stays while the pod exists.
        spare = 0 if all_unused and has_ended(pod.uid) else 1
        removed += [s for s in newest_first[spare:] if not s.ready and s.id not in holding]
    return removed
