"""Carry out a resize: change the pod's cgroup and its running containers in place.

A memory limit below what is used is refused before anything is changed: cgroup v2 would reclaim,
and then kill (KEP-1287). Each success is reported as it happens, so that what is left can be
continued at any point. Upstream: doPodResizeAction and validateMemoryResizeAction of
pkg/kubelet/kuberuntime, with their texts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, replace

import msgspec
import trio
from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.cgroups import CgroupError, CgroupLimits
from kubelet_trio.containers import (
    RESIZABLE,
    NodeSettings,
    effective_resources,
    overhead_resources,
    pod_cgroup_limits,
    update_resources,
    update_sandbox_resources,
)
from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.model import (
    RESIZES,
    ContainerId,
    ContainerState,
    RuntimePod,
    SandboxId,
    get_logger,
    pod_key,
    pod_uid,
)
from kubelet_trio.pods.plan import (
    Change,
    LimitPod,
    ResizePod,
    Resource,
    UpdateContainer,
    amount_of,
    exceeds,
    order_changes,
)
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.errors import ContainerStartError, StepError
from kubelet_trio.pods.types import WaitingReason

log = get_logger()

_REASON = "ResizeError"
_DURATION = "kubelet_pod_resize_duration_milliseconds"

# Called with an instance and what it has now; with None, and the pod's own resources, once all of
# the pod has what is allocated.
OnActuated = Callable[[ContainerId | None, ResourceRequirements | None], Awaitable[None]]


@dataclass(slots=True)
class PodResizing:
    """One attempt to carry out the resize of a pod."""

    services: PodServices
    on_actuated: OnActuated
    pod: Pod  # with its allocated resources
    node: NodeSettings
    sandbox_id: SandboxId
    observed: RuntimePod
    _limits: CgroupLimits | None = field(init=False, default=None)  # of the pod's cgroup, now

    async def run(self, resize: ResizePod, *, starts: bool) -> None:
        """Carry it out; `starts`: containers are to start afterwards.

        If it fails, the pod's limits are still raised for those. Raises `StepError`.
        """
        began = trio.current_time()
        try:
            changes = await self._order(resize)
            await self._apply(changes, starts=starts)
        except StepError:
            self._measure(began, "false")
            raise
        self._measure(began, "true")

    def expect_room(self, container: Container) -> None:
        """Raise `ContainerStartError` if the pod's cgroup has less than a container's limit.

        After a failed resize, if not even the pod's limit could be raised.
        """
        limits = self._limits
        if limits is not None and exceeds(effective_resources(self.pod, container), limits):
            text = "the limit of the pod's cgroup is lower than the container's"
            raise ContainerStartError(WaitingReason("CreateContainerError", text))

    async def _order(self, resize: ResizePod) -> list[Change]:
        try:
            wanted = pod_cgroup_limits(self.pod, self.node)
            self._limits = await self.services.cgroups.read(self.pod)
            return order_changes(self._limits, wanted, resize.containers, self.node.cgroup_version)
        except CgroupError as exc:
            text = f"unable to get pod cgroup config for pod {self._name()}: {exc}"
            raise StepError(_REASON, text) from exc
        except ValueError as exc:
            text = f"unable to get resource configuration processing resize for pod {self._name()}"
            raise StepError(_REASON, f"{text}: {exc}") from exc

    async def _apply(self, changes: list[Change], *, starts: bool) -> None:
        left = list(changes)
        failure = await self._try_all(left)
        if failure is not None and starts:
            # A container that starts must not have a higher limit than its pod.
            await self._raise_pod(c for c in left if isinstance(c, LimitPod) and c.grows)
        unread = await self._refresh()
        failure = failure or unread
        if failure is not None:
            raise failure

    async def _try_all(self, left: list[Change]) -> StepError | None:
        """Make the changes, and remove each that is made from `left`; return what failed."""
        try:
            await self._check_usage(left)
            while left:
                await self._change(left[0])
                del left[0]
        except StepError as exc:
            return exc
        return None

    async def _raise_pod(self, changes: Iterable[LimitPod]) -> None:
        for change in changes:
            try:
                await self._limit_pod(change)
            except StepError as exc:
                log.info("pod.not_raised", error=exc.message)

    async def _change(self, change: Change) -> None:
        if isinstance(change, LimitPod):
            await self._limit_pod(change)
        else:
            await self._update(change)

    # The pod

    async def _limit_pod(self, change: LimitPod) -> None:
        assert self._limits is not None
        merged = _over(self._limits, change.limits)
        # First, because a plugin of the runtime may refuse it.
        try:
            await self._notify(merged)
        except RuntimeCallError as exc:
            raise StepError(
                _REASON,
                f"failed to notify runtime for UpdatePodSandboxResources "
                f"(resource={change.resource}); resize rejected: updatePodSandboxResources failed "
                f'for sanboxID "{self.sandbox_id}": {exc.go_text}',  # upstream's spelling
            ) from exc
        refused: CgroupError | None = None
        try:
            await self.services.cgroups.limit(self.pod, change.limits)
        except CgroupError as exc:
            refused = exc
        if refused is not None:
            await self._take_back(self._limits)
            text = f"cannot change {change.resource} of the pod's cgroup: {refused}"
            raise StepError(_REASON, text) from refused
        self._limits = merged

    async def _notify(self, limits: CgroupLimits) -> None:
        await self.services.runtime.update_pod_sandbox_resources(
            self.sandbox_id,
            overhead_resources(self.pod, self.node),
            update_sandbox_resources(self.pod, limits, self.node),
        )

    async def _take_back(self, limits: CgroupLimits) -> None:
        try:
            await self._notify(limits)
        except RuntimeCallError as exc:
            log.info("pod.resize_not_taken_back", error=str(exc))

    # Its containers

    async def _update(self, change: UpdateContainer) -> None:
        instance = change.instance
        try:
            await self.services.runtime.update_container_resources(
                instance.id, self._request(change)
            )
        except RuntimeCallError as exc:
            amount = amount_of(change.then, change.resource)
            raise StepError(
                _REASON,
                f'cannot change {change.resource} of container "{instance.container.spec.name}" '
                f"to limit {_amount(amount.limit, change.resource)}, request "
                f"{_amount(amount.request, change.resource)}: {exc.go_text}",
            ) from exc
        await self.on_actuated(instance.id, change.then)

    def _request(self, change: UpdateContainer) -> v1.LinuxContainerResources:
        """Return the request to change one resource; 0 leaves the other as it is."""
        container = change.instance.container
        resources = _with_other(container.spec.resources, change.then)
        spec = msgspec.structs.replace(container.spec, resources=resources)
        records = {record.id: record for record in self.observed.containers}
        record = records.get(change.instance.id)
        request = update_resources(
            self.pod,
            container._replace(spec=spec),
            self.node,
            record.resources if record is not None else None,
        )
        if change.resource == "memory":
            request.cpu_shares = request.cpu_quota = request.cpu_period = 0
        else:
            request.memory_limit_in_bytes = request.memory_swap_limit_in_bytes = 0
            request.unified = {}  # of memory, all of them
        return request

    async def _refresh(self) -> StepError | None:
        """Read what the containers have now, also after a failure; return why that failed.

        All of them: an earlier attempt may have changed one that this attempt does not, and have
        failed or been cancelled before it read it. A relist does not see such a change.
        """
        running = (r for r in self.observed.containers if r.state is ContainerState.RUNNING)
        ids = [record.id for record in running]
        if not ids:
            return None
        try:
            await self.services.observer.refresh(pod_uid(self.pod), containers=ids)
        except RuntimeCallError as exc:
            return StepError(_REASON, f"cannot read the containers' resources: {exc.go_text}")
        return None

    # The check

    async def _check_usage(self, changes: Iterable[Change]) -> None:
        """Refuse memory limits below what is used. Raises `StepError`."""
        pod_limit = _shrunk_pod(changes)
        limits = _shrunk_containers(changes)
        if pod_limit is None and not limits:
            return
        found = []
        if pod_limit is not None:
            used = await self.services.cgroups.memory_usage(self.pod)
            found += _refusals("pod", pod_limit, used)
        for container_id, name, used in await self._usage(limits):
            found += _refusals(f'container "{name}"', limits[container_id], used)
        if found:
            text = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
            raise StepError(_REASON, f"cannot decrease memory limits: {text}")

    async def _usage(
        self, limits: Collection[ContainerId]
    ) -> list[tuple[ContainerId, str, int | None]]:
        """Return the name and the memory usage of containers; one that has ended is left out."""
        if not limits:
            return []
        try:
            stats = await self.services.runtime.list_container_stats(pod_uid(self.pod))
        except RuntimeCallError as exc:
            text = f"unable to read memory usage for pod {self._name()}: {exc.go_text}"
            raise StepError(_REASON, text) from exc
        names = {record.id: record.name for record in self.observed.containers}
        found = []
        for one in stats:
            container_id = ContainerId(one.attributes.id if one.attributes is not None else "")
            if container_id in limits:
                found.append((container_id, names[container_id], _used(one.memory)))
        return found

    def _name(self) -> str:
        key = pod_key(self.pod)
        return f'"{key.name}_{key.namespace}({pod_uid(self.pod)})"'

    def _measure(self, began: float, success: str) -> None:
        took = 1000 * (trio.current_time() - began)
        self.services.meter.observe(_DURATION, took, (success,), RESIZES)


def _used(memory: v1.MemoryUsage | None) -> int | None:
    if memory is None:
        return None
    # Some runtimes report only the working set.
    reported = memory.usage_bytes or memory.working_set_bytes
    return reported.value if reported is not None else None


def _refusals(whose: str, limit: int, used: int | None) -> list[str]:
    if used is None:
        return [f"missing {whose} memory usage"]
    if used < limit:
        return []
    return [f"attempting to set {whose} memory limit ({limit}) below current usage ({used})"]


def _shrunk_pod(changes: Iterable[Change]) -> int | None:
    """Return the pod's new memory limit, if it has had a higher one or none."""
    for change in changes:
        if isinstance(change, LimitPod) and change.limits.memory is not None and not change.grows:
            return change.limits.memory
    return None


def _shrunk_containers(changes: Iterable[Change]) -> dict[ContainerId, int]:
    """Return the new memory limits of instances that have had a higher one or none."""
    found = {}
    for change in changes:
        if isinstance(change, UpdateContainer) and change.resource == "memory":
            before = amount_of(change.now, "memory").limit
            after = amount_of(change.then, "memory").limit
            if after and (not before or after < before):
                found[change.instance.id] = after
    return found


def _with_other(
    resources: ResourceRequirements | None, resized: ResourceRequirements
) -> ResourceRequirements:
    """Return `resized`, with all that cannot be resized, such as huge pages."""
    plain = resources or ResourceRequirements()

    def of(which: str) -> dict[str, object]:
        kept = {n: q for n, q in (getattr(plain, which) or {}).items() if n not in RESIZABLE}
        return {**kept, **(getattr(resized, which) or {})}

    return ResourceRequirements(limits=of("limits"), requests=of("requests"))


def _over(limits: CgroupLimits, change: CgroupLimits) -> CgroupLimits:
    """Return limits as they are after a change: what is None in it is not written."""
    given = {f.name: getattr(change, f.name) for f in fields(change)}
    unified = {**limits.unified, **change.unified}
    changed = {n: value for n, value in given.items() if value not in (None, {})}
    return replace(limits, **{**changed, "unified": unified})


def _amount(amount: int, resource: Resource) -> str:
    if not amount:
        return "none"
    return f"{amount}m" if resource == "cpu" else str(amount)
