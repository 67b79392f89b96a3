"""What a simulation sees of resizes, and what must be so of each pod's resources."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lightkube.models.core_v1 import Container, ContainerStatus, Pod, PodCondition

from kubelet_trio.cgroups import (
    CgroupLimits,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    quota_to_milli_cpu,
    shares_in,
    shares_to_milli_cpu,
)
from kubelet_trio.containers import (
    NodeSettings,
    container_amounts,
    differs,
    effective_resources,
    pod_cgroup_limits,
    pod_requests,
)
from kubelet_trio.cri import v1
from kubelet_trio.model import (
    NANO,
    ContainerId,
    PodUid,
    is_terminal,
    parse_quantity,
    pod_containers,
    pod_uid,
    to_milli,
    to_units,
)
from kubelet_trio.pods.records.record import PodRecord, is_removed
from kubelet_trio.testing import FakeContainer, FakeRuntime
from tests.harness.pod_files import load_pods
from tests.simulation.manifests import Wish
from tests.simulation.sizes import MI, NODE_CPU, NODE_MEMORY

PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
RESOURCES = ("cpu", "memory")
ALLOCATABLE = {"cpu": NODE_CPU * NANO // 1000, "memory": NODE_MEMORY * MI * NANO}
_PERIOD = 100_000


class Limits(NamedTuple):
    """What a container's cgroup has: bytes, milli-CPU, CPU shares; 0 is none."""

    memory: int
    cpu: int
    shares: int

    @classmethod
    def of(cls, resources: v1.LinuxContainerResources | None) -> Limits:
        found = resources or v1.LinuxContainerResources()
        cpu = quota_to_milli_cpu(found.cpu_quota, found.cpu_period)
        return cls(found.memory_limit_in_bytes, cpu, found.cpu_shares)


def wanted_limits(pod: Pod, container: Container) -> Limits:
    """Return what the cgroup of a container is to have."""
    effective = effective_resources(pod, container)
    limits, requests = effective.limits or {}, effective.requests or {}
    cpu = to_milli(parse_quantity(limits.get("cpu", 0)))
    asked = to_milli(parse_quantity(requests["cpu"])) if "cpu" in requests else cpu
    return Limits(
        to_units(parse_quantity(limits.get("memory", 0))),
        quota_to_milli_cpu(milli_cpu_to_quota(cpu, _PERIOD), _PERIOD),
        milli_cpu_to_shares(asked),
    )


def wanted_pod(name: str, wish: Wish, node_name: str) -> Pod:
    """Return the pod of a manifest, with its defaults."""
    manifest = json.dumps(wish.manifest(name)).encode()
    (pod,) = load_pods(manifest, f"/{name}", node_name=node_name)
    return pod


def was_rejected(pod: Pod) -> bool:
    """Whether the node had too little for a new pod."""
    status = pod.status
    if status is None or status.phase != "Failed":
        return False
    # Pods of manifests are critical, so that the node looks for others to preempt.
    return status.reason in ("OutOfcpu", "OutOfmemory") or "preempt" in (status.message or "")


def condition(pod: Pod, type_: str) -> PodCondition | None:
    """Return a condition of a pod."""
    conditions = (pod.status.conditions or ()) if pod.status is not None else ()
    return next((c for c in conditions if c.type == type_), None)


class ResizeWitness:
    """Sees what is recorded, applied and reported.

    Attributes:
        records: the newest record of each pod.
        restarts: by pod and container, the resizes that had to restart it.
        broken: descriptions of rules that were broken.
    """

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self.records: dict[PodUid, PodRecord] = {}
        self.restarts: Counter[tuple[PodUid, str]] = Counter()
        self.broken: list[str] = []
        self._had: dict[ContainerId, set[Limits]] = {}
        self._qos: dict[PodUid, str] = {}

    # What happens

    def see_records(self, args: Iterable[object]) -> None:
        """See what is written, if it is a pod's record."""
        for record in args:
            if isinstance(record, PodRecord):
                self._see_allocation(record)
                self.records[record.uid] = record

    def _see_allocation(self, record: PodRecord) -> None:
        before = self.records.get(record.uid)
        if before is None or not differs(before.pod, record.pod):
            return
        old = {c.spec.name: c.spec for c in pod_containers(before.pod)}
        for container in pod_containers(record.pod):
            name = container.spec.name
            if name not in old:  # of a pod that was made from what the runtime had
                continue
            changed = _changed(before.pod, old[name], record.pod, container.spec)
            if changed & _restarting(container.spec):
                self.restarts[record.uid, name] += 1

    def see_update(self, container: FakeContainer, then: v1.LinuxContainerResources) -> None:
        """See an update of a running container before it applies."""
        now, new = Limits.of(container.resources), Limits.of(then)
        self._had.setdefault(container.id, {now}).add(new)
        record = self.records.get(container.uid)
        if record is None:
            self.broken.append(f"{container.uid} is resized without a record")
            return
        specs = {c.spec.name: c.spec for c in pod_containers(record.pod)}
        restarting = _restarting(specs[container.name])
        if "memory" in restarting and now.memory != new.memory:
            self.broken.append(f"{container.id}: memory changed in place, {now} to {new}")
        if "cpu" in restarting and (now.cpu, now.shares) != (new.cpu, new.shares):
            self.broken.append(f"{container.id}: cpu changed in place, {now} to {new}")

    def look(self, pods: Collection[Pod]) -> None:
        """Look at what is reported at this moment."""
        for container in self._runtime.containers.values():
            linux = container.config.linux
            self._had.setdefault(container.id, set()).update(
                (Limits.of(linux.resources if linux else None), Limits.of(container.resources))
            )
        for pod in pods:
            qos = (pod.status.qosClass or "") if pod.status is not None else ""
            if qos and self._qos.setdefault(pod_uid(pod), qos) != qos:
                self.broken.append(f"{pod_uid(pod)} was {self._qos[pod_uid(pod)]}, and is {qos}")
            for shown, had in self._shown(pod):
                if wrong := _untrue(shown, had):
                    self.broken.append(f"{shown.containerID} of {pod_uid(pod)}: {wrong}")

    def _shown(self, pod: Pod) -> Iterator[tuple[ContainerStatus, set[Limits]]]:
        """Yield the statuses of running containers, with all that these ever had."""
        for shown in _statuses(pod):
            at = ContainerId((shown.containerID or "").partition("://")[2])
            if shown.state is not None and shown.state.running is not None and at in self._had:
                yield shown, self._had[at]

    # What must be so

    def allocated(self, uids: Iterable[str]) -> dict[str, int]:
        """Return the sum of what is allocated on record to these pods, in nano-units."""
        total = dict.fromkeys(RESOURCES, 0)
        for uid in uids:
            record = self.records.get(PodUid(uid))
            if record is None or not record.admitted or is_removed(record):
                continue
            if not is_terminal(record.pod.status):
                for name in RESOURCES:
                    total[name] += pod_requests(record.pod).get(name, 0)
        return total

    def check_sum(self, uids: Iterable[str]) -> None:
        """See that no more is allocated than there is."""
        total = self.allocated(uids)
        assert all(total[name] <= ALLOCATABLE[name] for name in RESOURCES), total

    def check_done(self, pod: Pod, node: NodeSettings, cgroup: CgroupLimits | None) -> None:
        """See that a pod has what is allocated to it, and that its status says so."""
        allocated = self.records[pod_uid(pod)].pod
        progress = condition(pod, IN_PROGRESS)
        assert progress is None, f"{pod_uid(pod)}: {progress}"
        assert self.records[pod_uid(pod)].resize is None
        specs = {c.spec.name: c.spec for c in pod_containers(allocated)}
        for container in self._runtime.alive(pod_uid(pod)):
            now, wanted = (
                Limits.of(container.resources),
                wanted_limits(allocated, specs[container.name]),
            )
            assert now == wanted, f"{pod_uid(pod)}/{container.name}: {now}, allocated {wanted}"
        for shown, _ in self._shown(pod):
            at = ContainerId((shown.containerID or "").partition("://")[2])
            if at in self._runtime.containers:
                now = Limits.of(self._runtime.containers[at].resources)
                wrong = _untrue(shown, {now})
                assert not wrong, f"{pod_uid(pod)}/{shown.name}: {wrong}"
        if cgroup is not None:
            has, limits = _comparable(cgroup), _comparable(pod_cgroup_limits(allocated, node))
            assert has == limits, f"{pod_uid(pod)}: {has}, allocated {limits}"

    def check_decision(self, pod: Pod, desired: Pod, others: Iterable[str]) -> None:
        """See that a pod has what it asks for, or says rightly why it has not."""
        allocated = self.records[pod_uid(pod)].pod
        pending = condition(pod, PENDING)
        if not differs(desired, allocated):
            assert pending is None, f"{pod_uid(pod)} has what it asks for: {pending}"
            return
        before, after, used = pod_requests(allocated), pod_requests(desired), self.allocated(others)
        grows = [n for n in RESOURCES if after.get(n, 0) > before.get(n, 0)]
        never = any(after[n] > ALLOCATABLE[n] for n in grows)
        fits = all(after[n] + used[n] <= ALLOCATABLE[n] for n in grows)
        assert not fits, f"{pod_uid(pod)} fits and is not resized: {after}, used {used}"
        assert pending is not None, f"{pod_uid(pod)} is not resized, and nobody says why"
        assert pending.status == "True"
        assert pending.reason == ("Infeasible" if never else "Deferred"), pending


@dataclass(frozen=True)
class _Amount:
    limit: int
    request: int


def _changed(before: Pod, old: Container, after: Pod, new: Container) -> set[str]:
    """Return the resources of a container's cgroup that differ."""

    def amount(pod: Pod, container: Container, name: str) -> _Amount:
        effective = effective_resources(pod, container)
        limits = {n: parse_quantity(q) for n, q in (effective.limits or {}).items()}
        return _Amount(limits.get(name, 0), container_amounts(container, "requests").get(name, 0))

    return {n for n in RESOURCES if amount(before, old, n) != amount(after, new, n)}


def _restarting(container: Container) -> set[str]:
    policies = container.resizePolicy or ()
    return {p.resourceName for p in policies if p.restartPolicy == "RestartContainer"}


def _statuses(pod: Pod) -> list[ContainerStatus]:
    status = pod.status
    if status is None:
        return []
    return [*(status.containerStatuses or ()), *(status.initContainerStatuses or ())]


def _untrue(shown: ContainerStatus, had: Collection[Limits]) -> str:
    """Return what a status says that is none of these; "" if it may be true."""
    resources = shown.resources
    limits = (resources.limits or {}) if resources is not None else {}
    requests = (resources.requests or {}) if resources is not None else {}
    told = {
        "memory limit": (limits.get("memory"), to_units, {h.memory for h in had}),
        "cpu limit": (limits.get("cpu"), to_milli, {h.cpu for h in had}),
        "cpu request": (
            requests.get("cpu"),
            to_milli,
            {shares_to_milli_cpu(h.shares) for h in had},
        ),
    }
    for what, (quantity, whole, true) in told.items():
        if quantity is not None and whole(parse_quantity(quantity)) not in true:
            return f"{what} {quantity} is reported, it has {sorted(true)}"
    return ""


def _comparable(limits: CgroupLimits) -> tuple[object, ...]:
    quota = limits.cpu_quota if (limits.cpu_quota or 0) > 0 else None
    memory = limits.memory if (limits.memory or 0) > 0 else None
    return quota, memory, shares_in(limits.cpu_shares or 0, 2)
