"""Decide how a resize that is allocated reaches the containers and the pod's cgroup.

`plan_resize` says which instances are updated in place; those whose `resizePolicy` is
RestartContainer for a resource that changes are restarted instead (`requires_restart`).
`order_changes` gives the order of the changes. Source: computePodResizeAction and
doPodResizeAction of pkg/kubelet/kuberuntime, which it follows but for three rules that keep
containers at or below their pod's limits at every step:

- A limit where there was none is a decrease, not an increase: a pod's new limit comes after the
  limits of its containers.
- A pod's limit is lifted if a container has none any more. Upstream keeps it.
- Containers start after the pod's limits have grown. Upstream starts sidecars before that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.cgroups import UNLIMITED, CgroupLimits, milli_cpu_to_quota, shares_in
from kubelet_trio.containers import effective_resources
from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    RuntimePod,
    parse_quantity,
    pod_containers,
    spec,
    to_milli,
    to_units,
)
from kubelet_trio.pods.types import PodResize

Resource = Literal["memory", "cpu"]
RESOURCES: tuple[Resource, ...] = ("memory", "cpu")  # in the order of their changes


class Amount(NamedTuple):
    """Limit and request of one resource: bytes or milli-CPU, 0 for none."""

    limit: int
    request: int


def amount_of(resources: ResourceRequirements | None, resource: Resource) -> Amount:
    """Return the limit and the request of a resource. Raises ValueError."""
    whole = to_units if resource == "memory" else to_milli

    def of(which: str) -> int:
        found = getattr(resources, which) if resources is not None else None
        return whole(parse_quantity((found or {}).get(resource, 0)))

    return Amount(of("limits"), of("requests"))


@dataclass(frozen=True, slots=True)
class ResizeContainer:
    """A running instance to update in place."""

    id: ContainerId
    container: PodContainer
    before: ResourceRequirements  # CPU and memory of its cgroup
    after: ResourceRequirements


@dataclass(frozen=True, slots=True)
class ResizePod:
    """A resize to carry out: the pod's cgroup, and these instances."""

    containers: tuple[ResizeContainer, ...] = ()


def changed_resources(
    before: ResourceRequirements, after: ResourceRequirements
) -> tuple[Resource, ...]:
    """Return the resources whose limit or request differs. Raises ValueError."""
    return tuple(r for r in RESOURCES if amount_of(before, r) != amount_of(after, r))


def requires_restart(
    pod: Pod, container: Container, record: ContainerRecord, resize: PodResize | None
) -> bool:
    """Whether a running instance has to be restarted for a resize. Raises ValueError."""
    before = resize.actuated.get(record.id) if resize is not None else None
    if before is None:
        return False
    changed = changed_resources(before, effective_resources(pod, container))
    return any(_restarts_for(container, resource) for resource in changed)


def plan_resize(
    pod: Pod, observed: RuntimePod, resize: PodResize, stopped: Collection[ContainerId]
) -> tuple[ResizeContainer, ...]:
    """Return the running instances to update in place, in upstream's order.

    Args:
        pod: the pod with its allocated resources.
        observed: what the runtime reports of it.
        resize: the resize in progress.
        stopped: instances that the plan stops.
    """
    found = []
    inits = [c for c in pod_containers(pod) if c.kind is ContainerKind.INIT]
    mains = [c for c in pod_containers(pod) if c.kind is ContainerKind.MAIN]
    for container in (*reversed(inits), *mains):
        latest = observed.latest(container.spec.name)
        if latest is None or latest.state is not ContainerState.RUNNING or latest.id in stopped:
            continue
        before, after = resize.actuated.get(latest.id), effective_resources(pod, container.spec)
        if before is not None and changed_resources(before, after):
            found.append(ResizeContainer(latest.id, container, before, after))
    return tuple(found)


def begin_resize(
    before: Pod,
    after: Pod,
    observed: RuntimePod,
    resize: PodResize | None,
    generation: int | None = None,
) -> PodResize:
    """Return the resize to record with a new allocation.

    Args:
        before: the pod with the resources that were allocated until now.
        after: the pod with the newly allocated resources.
        observed: what the runtime reports of it, for certain.
        resize: the resize in progress until now.
        generation: of the pod whose resources are allocated.
    """
    recorded = resize or PodResize()
    specs = {c.spec.name: c.spec for c in pod_containers(before)}
    named = {c.spec.name: c.spec for c in pod_containers(after)}
    actuated = {}
    for record in observed.containers:
        if record.state is ContainerState.EXITED or record.name not in named.keys() & specs.keys():
            continue
        was = effective_resources(before, specs[record.name])
        wanted = effective_resources(after, named[record.name])
        has = recorded.actuated.get(record.id, was)
        for resource in changed_resources(has, was):
            # An update to the earlier allocation may have taken effect without being recorded.
            # Either amount may be in force: recorded is the one that has to change.
            in_place = not _restarts_for(named[record.name], resource)
            if in_place and amount_of(has, resource) == amount_of(wanted, resource):
                has = with_resource(has, was, resource)
        if changed_resources(has, wanted):
            actuated[record.id] = has
    level = recorded.pod_level if recorded.pod_level is not None else spec(before).resources
    level = level or ResourceRequirements()
    is_same = not changed_resources(level, spec(after).resources or ResourceRequirements())
    return PodResize(
        generation=generation,
        actuated=actuated,
        pod_level=None if is_same else level,
    )


def _restarts_for(container: Container, resource: Resource) -> bool:
    policies = {p.resourceName: p.restartPolicy for p in container.resizePolicy or ()}
    return policies.get(resource) == "RestartContainer"


# The order of the changes


@dataclass(frozen=True, slots=True)
class LimitPod:
    """Write these limits, and no others, to the pod's cgroup."""

    resource: Resource
    limits: CgroupLimits
    grows: bool


@dataclass(frozen=True, slots=True)
class UpdateContainer:
    """Change one resource of an instance, and leave the other as it is.

    What it has of the other one may not be what is recorded: see `begin_resize`.
    """

    resource: Resource
    instance: ResizeContainer
    now: ResourceRequirements  # as recorded before the change
    then: ResourceRequirements  # to be recorded after it: `now`, but for `resource`


Change = LimitPod | UpdateContainer


def order_changes(
    now: CgroupLimits | None,
    wanted: CgroupLimits,
    containers: Iterable[ResizeContainer],
    version: int,
) -> list[Change]:
    """Return the changes of a resize, in an order that never leaves a container above its pod.

    Memory is changed before CPU. For each of them: the pod's limits grow, containers change, those
    that shrink first, the pod's limits shrink. Requests grow after limits and shrink before them.

    Args:
        now: the limits of the pod's cgroup; None if it has none.
        wanted: the limits that it is to have; None for a resource is no limit.
        containers: the instances to update.
        version: of the cgroups, 1 or 2.
    """
    updates = sorted((u for c in containers for u in _updates(c)), key=_is_growing)
    found: list[Change] = []
    for resource in RESOURCES:
        limit, request = _pod_changes(now, wanted, resource, version)
        found += [change for change in (*limit, *request) if change.grows]
        found += [update for update in updates if update.resource == resource]
        found += [change for change in (*request, *limit) if not change.grows]
    return found


def exceeds(resources: ResourceRequirements, limits: CgroupLimits) -> bool:
    """Whether a container's limit is higher than that of its pod's cgroup. Raises ValueError."""
    memory, cpu = amount_of(resources, "memory").limit, amount_of(resources, "cpu").limit
    quota = milli_cpu_to_quota(cpu, limits.cpu_period or 0)
    return memory > _limit(limits.memory) or quota > _limit(limits.cpu_quota)


def _updates(container: ResizeContainer) -> Iterator[UpdateContainer]:
    now = container.before
    for resource in changed_resources(container.before, container.after):
        then = with_resource(now, container.after, resource)
        yield UpdateContainer(resource, container, now, then)
        now = then


def with_resource(
    resources: ResourceRequirements, other: ResourceRequirements, resource: Resource
) -> ResourceRequirements:
    """Return `resources`, but with one resource of `other`."""

    def of(which: str) -> dict[str, object] | None:
        kept = {n: q for n, q in (getattr(resources, which) or {}).items() if n != resource}
        given = getattr(other, which) or {}
        taken = {resource: given[resource]} if resource in given else {}
        return {**kept, **taken} or None

    return ResourceRequirements(limits=of("limits"), requests=of("requests"))


def _is_growing(update: UpdateContainer) -> bool:
    """Whether an update is an increase: of the limit, or if that is unchanged of the request."""
    before = amount_of(update.now, update.resource)
    after = amount_of(update.then, update.resource)
    if before.limit != after.limit:
        return (after.limit or math.inf) > (before.limit or math.inf)
    return after.request > before.request


def _pod_changes(
    now: CgroupLimits | None, wanted: CgroupLimits, resource: Resource, version: int
) -> tuple[list[LimitPod], list[LimitPod]]:
    """Return the changes of the pod's limit, and of what follows its requests."""
    if now is None:
        return [], []
    if resource == "memory":
        kept = [(True, CgroupLimits(unified=wanted.unified))] if wanted.unified else []
        return _changes(resource, _memory(now, wanted)), _changes(resource, kept)
    return _changes(resource, _quota(now, wanted)), _changes(
        resource, _shares(now, wanted, version)
    )


def _changes(resource: Resource, found: Iterable[tuple[bool, CgroupLimits]]) -> list[LimitPod]:
    return [LimitPod(resource, limits, grows) for grows, limits in found]


def _memory(now: CgroupLimits, wanted: CgroupLimits) -> Iterator[tuple[bool, CgroupLimits]]:
    before, after = _limit(now.memory), _limit(wanted.memory)
    if now.memory is not None and before != after:
        limit = UNLIMITED if wanted.memory is None else wanted.memory
        yield after > before, CgroupLimits(memory=limit)


def _quota(now: CgroupLimits, wanted: CgroupLimits) -> Iterator[tuple[bool, CgroupLimits]]:
    before, after = _cores(now), _cores(wanted)
    if now.cpu_quota is not None and before != after:
        quota = UNLIMITED if wanted.cpu_quota is None else wanted.cpu_quota
        period = wanted.cpu_period or now.cpu_period
        yield after > before, CgroupLimits(cpu_quota=quota, cpu_period=period)


def _shares(
    now: CgroupLimits, wanted: CgroupLimits, version: int
) -> Iterator[tuple[bool, CgroupLimits]]:
    if now.cpu_shares is None or wanted.cpu_shares is None:
        return
    before, after = shares_in(now.cpu_shares, version), shares_in(wanted.cpu_shares, version)
    if before != after:
        yield after > before, CgroupLimits(cpu_shares=wanted.cpu_shares)


def _limit(limit: int | None) -> float:
    return math.inf if limit is None or limit == UNLIMITED else limit


def _cores(limits: CgroupLimits) -> float:
    """Return the CPU limit of a cgroup in cores."""
    quota = _limit(limits.cpu_quota)
    return quota / limits.cpu_period if limits.cpu_period else math.inf
