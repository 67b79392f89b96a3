"""The node's cgroups: made before pods need them, kept as the pods need them, cleaned up.

    <cgroup root>/kubepods             what pods may use together (node allocatable)
    <cgroup root>/kubepods/burstable   weighs what its pods request together
    <cgroup root>/kubepods/besteffort  weighs next to nothing
                  …/pod<uid>           made just before the pod's sandbox

A pod's worker calls `ensure` and `remove`; everything else is one task (`run`), woken by
both and once a minute. What an earlier agent left is taken over: classes are written anew,
and each pod's limits once. A cgroup of a pod that nobody wants goes when it is empty; one in
which something still runs is not ours to end, and is named in the log instead.

A machine that lets us write no cgroups, or lacks a controller, is said so once. Pods then
run without: the runtime still limits containers as far as it may.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue, wait_any

from kubelet_trio.agent.cgroup_meter import MeteredTree
from kubelet_trio.cgroups import (
    CGROUP_ERRORS,
    MIN_SHARES,
    CgroupBusyError,
    CgroupDriver,
    CgroupError,
    CgroupLimits,
    CgroupName,
    CgroupsDeniedError,
    Written,
    cgroup_path,
    parse_cgroup,
    parse_existing,
    pod_cgroup,
    qos_cgroup,
)
from kubelet_trio.containers import (
    NodeSettings,
    node_cgroup_limits,
    pod_cgroup_limits,
    pod_qos,
    qos_cgroup_limits,
)
from kubelet_trio.cri import RuntimeHealth
from kubelet_trio.model import (
    Bell,
    EventSink,
    ObjectRef,
    PodUid,
    get_logger,
    housekeeping_round,
    is_terminal,
    node_ref,
    pod_uid,
    to_units,
)
from kubelet_trio.pods import PodRegistry
from kubelet_trio.supervision import ChildSpec, RestartPolicy

if TYPE_CHECKING:
    from kubelet_trio.agent.settings import AgentSettings, Seams

log = get_logger()

_PERIOD = 60.0  # seconds between two rounds that nothing asks for
_GATHER = 0.2  # seconds in which what asks for a round is gathered
_FAILED = "FailedNodeAllocatableEnforcement"
_V1 = "cgroup v1 support is in maintenance mode, please migrate to cgroup v2"
_ENFORCED = "NodeAllocatableEnforced"
# Pods that use no huge pages lose nothing without their controller: upstream is silent too.
_OPTIONAL = frozenset({"hugetlb"})


class CgroupTree(Protocol):
    """The cgroups of one driver: see `cgroups.CgroupTree`."""

    async def apply(self, name: CgroupName, limits: CgroupLimits) -> Written: ...
    async def limit(self, path: str, limits: CgroupLimits) -> Written: ...
    async def exists(self, path: str) -> bool: ...
    async def memory_usage(self, name: CgroupName) -> int | None: ...
    async def limit_pod(self, uid: PodUid, limits: CgroupLimits) -> None: ...
    async def remove(self, uid: PodUid) -> None: ...
    async def remove_empty(self, uid: PodUid) -> None: ...
    async def list_pods(self) -> frozenset[PodUid]: ...


@dataclass(frozen=True, slots=True)
class ReservedCgroup:
    """A cgroup of the system's that is held to what is reserved for it; it must exist."""

    label: str  # as events name it: System Reserved, Kube Reserved
    path: str
    budget: Mapping[str, int]  # nano-units by resource
    compressible_only: bool = False


@dataclass(frozen=True, slots=True)
class CgroupPolicy:
    """What `KubeletConfiguration` says of the node's cgroups. Amounts in nano-units."""

    budget: Mapping[str, int] = field(default_factory=dict)  # of all pods, `pid` included
    pids_limit: int = -1  # podPidsLimit
    reserved: tuple[ReservedCgroup, ...] = ()
    reserve_percent: int | None = None  # qosReserved.memory


class PodCgroupRemover(Protocol):
    """What there is of pods' cgroups where no hierarchy is kept."""

    async def remove(self, uid: PodUid) -> None: ...


@dataclass(frozen=True, slots=True)
class PlainCgroups:
    """No hierarchy of ours: the runtime makes a pod's cgroup, and we remove what is left."""

    tree: Callable[[CgroupDriver], PodCgroupRemover]
    node: Callable[[], NodeSettings]

    async def ensure(self, pod: Pod) -> None:
        await trio.lowlevel.checkpoint()

    async def remove(self, uid: PodUid) -> None:
        """Remove what is left of the pod's cgroup, if we may: else the pod ends without."""
        try:
            await self.tree(self.node().cgroup_driver).remove(uid)
        except CgroupsDeniedError as exc:
            log.info("cgroups.not_removed", uid=uid, error=str(exc))


class NodeCgroups:
    """See the module."""

    def __init__(
        self,
        policy: CgroupPolicy,
        tree: Callable[[CgroupDriver], CgroupTree],
        node: Callable[[], NodeSettings],
        events: EventSink,
        pods: AsyncValue[Mapping[PodUid, Pod]],
        wait_runtime: Callable[[], Awaitable[object]],
    ) -> None:
        self._policy = policy
        self._make_tree = tree
        self._node = node
        self._events = events
        self._pods = pods
        self._wait_runtime = wait_runtime  # only then is it known which driver it has
        self._making = trio.Lock()  # of the levels above pods: two workers ask for them at once
        self._rooted: CgroupDriver | None = None  # under which driver they were made
        self._denied = False
        self._enforced: set[str] = set()
        self._limited: set[PodUid] = set()
        self._missing: set[str] = set()
        self._trouble: dict[str, str] = {}  # what was last said of a cgroup
        self._wake = Bell()

    # What a pod's worker asks for

    async def ensure(self, pod: Pod) -> None:
        """Have the pod's cgroup, limited. Raises `CgroupError`; never where we may make none."""
        if self._denied:
            return
        node, uid = self._node(), pod_uid(pod)
        try:
            limits = pod_cgroup_limits(pod, node, self._policy.pids_limit)
        except ValueError as exc:
            raise CgroupError(str(exc)) from exc
        try:
            async with self._making:
                if self._rooted != node.cgroup_driver:
                    await self._make_roots(node)
            name = pod_cgroup(uid, pod_qos(pod), parse_cgroup(node.cgroup_root))
            written = await self._tree().apply(name, limits)
        except CgroupsDeniedError as exc:
            self._deny(exc)
            return
        self._tell_missing(written)
        if written.failures:
            raise CgroupError("; ".join(written.failures))
        self._limited.add(uid)
        self._wake.ring()

    async def remove(self, uid: PodUid) -> None:
        """Remove the pod's cgroup, if we may, and kill what the runtime has lost in it."""
        self._limited.discard(uid)
        try:
            await self._tree().remove(uid)
        except CgroupsDeniedError as exc:
            self._deny(exc)
        self._wake.ring()

    # The task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the levels above pods, and take over pods' cgroups; until cancelled."""
        task_status.started()
        await self._wait_runtime()
        if self._node().cgroup_version == 1:
            self._events.emit(self._ref(), "Warning", "CgroupV1", _V1)
        while not self._denied:
            self._wake.clear()
            there = self._pods.value.keys()
            await self._round()
            with trio.move_on_after(_PERIOD):
                await wait_any(self._wake.wait_ring, partial(self._wait_other_pods, there))
            await trio.sleep(_GATHER)
        await trio.sleep_forever()

    async def _wait_other_pods(self, there: Set[PodUid]) -> None:
        await self._pods.wait_value(lambda pods: pods.keys() != there)

    async def list_pods(self) -> frozenset[PodUid]:
        """Return the pods that have a cgroup."""
        return frozenset() if self._denied else await self._tree().list_pods()

    async def remove_empty(self, uid: PodUid) -> None:
        """Remove a cgroup that nothing runs in. Raises `CgroupBusyError`."""
        await self._tree().remove_empty(uid)

    async def starve(self, uid: PodUid) -> None:
        """Give what runs in a pod's cgroup the least CPU there is."""
        await self._tree().limit_pod(uid, CgroupLimits(cpu_shares=MIN_SHARES))

    async def _round(self) -> None:
        node = self._node()
        pods = [pod for pod in self._pods.value.values() if _is_active(pod)]
        try:
            async with self._making:
                await self._make_roots(node)
            await self._weigh_classes(node, pods)
            await self._hold_reserved()
            await self._take_over(node, pods)
        except CgroupsDeniedError as exc:
            self._deny(exc)
        except (CgroupError, OSError, ValueError) as exc:
            # Nothing here is worth the agent's life: pods run with the limits they have.
            self._tell("cgroups", (str(exc),))
        else:
            self._tell("cgroups", ())

    async def _make_roots(self, node: NodeSettings) -> None:
        """Make the cgroup of all pods, held to the node's budget, and the two classes' in it."""
        root = parse_cgroup(node.cgroup_root)
        name = qos_cgroup("Guaranteed", root)
        limits = node_cgroup_limits(self._policy.budget, node.hugepage_sizes)
        written = await self._tree().apply(name, limits)
        self._tell_missing(written)
        self._report(
            "pods",
            "Updated Node Allocatable limit across pods",
            f"Failed to update Node Allocatable Limits {list(name)}",
            written.failures,
        )
        if self._rooted != node.cgroup_driver:
            for qos, class_limits in qos_cgroup_limits((), node).items():
                if qos != "Guaranteed":
                    await self._tree().apply(qos_cgroup(qos, root), class_limits)
            self._rooted = node.cgroup_driver

    async def _weigh_classes(self, node: NodeSettings, pods: list[Pod]) -> None:
        limits = qos_cgroup_limits(
            pods,
            node,
            allocatable_memory=to_units(self._policy.budget.get("memory", 0)),
            reserve_percent=self._policy.reserve_percent,
        )
        for qos, wanted in limits.items():
            name = qos_cgroup(qos, parse_cgroup(node.cgroup_root))
            written = await self._tree().apply(name, wanted)
            if written.failures and wanted.memory is not None:
                # More is in use than shall be: let it at least not grow.
                used = await self._tree().memory_usage(name)
                if used is not None and used > wanted.memory:
                    written = await self._tree().apply(name, replace(wanted, memory=used))
            self._tell_missing(written)
            self._tell(qos, written.failures)

    async def _hold_reserved(self) -> None:
        """Hold the daemons' own cgroups to what is reserved for them, as `kubeReserved` says."""
        sizes = self._node().hugepage_sizes
        for reserved in self._policy.reserved:
            if reserved.label in self._enforced:
                continue
            driver = self._node().cgroup_driver
            path = cgroup_path(parse_existing(reserved.path, driver), driver)
            if not await self._tree().exists(path):
                failures: tuple[str, ...] = (f'"{reserved.path}" cgroup does not exist',)
            else:
                limits = node_cgroup_limits(
                    reserved.budget, sizes, compressible_only=reserved.compressible_only
                )
                failures = (await self._tree().limit(path, limits)).failures
            self._report(
                reserved.label,
                f"Updated limits on {reserved.label.split()[0].lower()} reserved cgroup "
                f"{reserved.path}",
                f"Failed to enforce {reserved.label} Cgroup Limits on {reserved.path!r}",
                failures,
            )

    async def _take_over(self, node: NodeSettings, pods: list[Pod]) -> None:
        """Limit the cgroups of pods that were there before this agent; never make one."""
        unknown = [pod for pod in pods if pod_uid(pod) not in self._limited]
        there = await self._tree().list_pods() if unknown else frozenset()
        for pod in unknown:
            uid = pod_uid(pod)
            if uid not in there:
                continue
            self._limited.add(uid)
            name = pod_cgroup(uid, pod_qos(pod), parse_cgroup(node.cgroup_root))
            path = cgroup_path(name, node.cgroup_driver)
            # Without a record the class is a guess, and its cgroup may be in another one.
            if not await self._tree().exists(path):
                continue
            limits = pod_cgroup_limits(pod, node, self._policy.pids_limit)
            written = await self._tree().limit(path, limits)
            self._tell(uid, written.failures)

    # What is said of it

    def _tree(self) -> CgroupTree:
        return self._make_tree(self._node().cgroup_driver)

    def _ref(self) -> ObjectRef:
        return node_ref(self._node().node_name)

    def _deny(self, exc: CgroupsDeniedError) -> None:
        if not self._denied:
            self._denied = True
            log.warning(
                "cgroups.denied", error=str(exc), effect="pods have no limits beside containers'"
            )

    def _tell_missing(self, written: Written) -> None:
        missing = written.missing - self._missing - _OPTIONAL
        if missing:
            self._missing |= missing
            log.warning(
                "cgroups.controllers_missing",
                controllers=sorted(missing),
                effect="pods are not limited by them",
            )

    def _tell(self, what: str, failures: tuple[str, ...]) -> None:
        text = "; ".join(failures)
        if text and self._trouble.get(what) != text:
            log.warning("cgroups.not_limited", of=what, error=text)
        self._trouble[what] = text

    def _report(self, what: str, done: str, failed: str, failures: tuple[str, ...]) -> None:
        """Say once that it is enforced, and of each new failure that it is not."""
        ref = self._ref()
        text = "; ".join(failures)
        if not text and what not in self._enforced:
            self._enforced.add(what)
            self._events.emit(ref, "Normal", _ENFORCED, done)
        elif text:
            self._enforced.discard(what)
            self._events.emit(ref, "Warning", _FAILED, f"{failed}: {text}")


@dataclass(slots=True)
class OrphanCgroups:
    """Removes the cgroups of pods that nobody wants and nobody ends, once in a while.

    One with processes in it stays: this agent's runtime knows nothing of them, so they are
    some other agent's. Where the pod's directory is still here they were this one's, lost by the
    runtime: they get the least CPU there is until the directory is gone, as by the Go kubelet.
    """

    cgroups: NodeCgroups
    registry: Callable[[], PodRegistry]
    wait_synced: Callable[[], Awaitable[None]]  # until the runtime's pods are known
    pods_on_disk: Callable[[], Awaitable[frozenset[PodUid]]]  # that have a directory here
    _named: set[PodUid] = field(default_factory=set)  # in the log, as not removed
    _limited: set[PodUid] = field(default_factory=set)  # if they were this agent's

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look until cancelled."""
        task_status.started()
        await self.wait_synced()
        await self.registry().wait_complete()
        while True:
            with housekeeping_round("pod cgroups"):
                await self.sweep()
            await trio.sleep(_PERIOD)

    async def sweep(self) -> None:
        """Remove what can be."""
        try:
            there = await self.cgroups.list_pods()
        except OSError as exc:
            log.info("cgroups.unreadable", error=str(exc))
            return
        for uid in sorted(there):
            with self.registry().reclaiming(uid) as is_ours:
                if is_ours:
                    await self._remove(uid)
        self._named &= there
        self._limited &= there

    async def _remove(self, uid: PodUid) -> None:
        try:
            await self.cgroups.remove_empty(uid)
        except CGROUP_ERRORS as exc:
            failure = exc
        else:
            log.info("cgroups.orphan_removed", uid=uid)
            return
        if uid not in self._named:
            self._named.add(uid)
            log.warning("cgroups.orphan_stays", uid=uid, error=str(failure))
        if isinstance(failure, CgroupBusyError) and uid not in self._limited:
            await self._limit(uid)

    async def _limit(self, uid: PodUid) -> None:
        """Give what still runs there the least CPU, if it was this agent's."""
        try:
            if uid in await self.pods_on_disk():
                await self.cgroups.starve(uid)
        except CGROUP_ERRORS as exc:
            log.info("cgroups.orphan_not_limited", uid=uid, error=str(exc))
        else:
            self._limited.add(uid)


def _is_active(pod: Pod) -> bool:
    return not is_terminal(pod.status)


def make_cgroups(
    settings: AgentSettings,
    seams: Seams,
    node: Callable[[], NodeSettings],
    events: EventSink,
    pods: AsyncValue[Mapping[PodUid, Pod]],
    health: RuntimeHealth,
) -> NodeCgroups | PlainCgroups:
    """Return who keeps the pods' cgroups: nobody, where the world has no tree for them."""
    if seams.cgroup_tree is None:
        return PlainCgroups(seams.cgroups, node)
    make_tree, meter = seams.cgroup_tree, seams.meter
    return NodeCgroups(
        settings.cgroups,
        lambda driver: MeteredTree(make_tree(driver), meter),
        node,
        events,
        pods,
        lambda: health.state.wait_value(lambda state: state.is_ready),
    )


def cgroup_children(
    cgroups: NodeCgroups | PlainCgroups,
    registry: Callable[[], PodRegistry],
    wait_synced: Callable[[], Awaitable[None]],
    pods_on_disk: Callable[[], Awaitable[frozenset[PodUid]]],
) -> tuple[tuple[ChildSpec, ...], tuple[ChildSpec, ...]]:
    """Return what runs before the pods, and what cleans up after them."""
    if not isinstance(cgroups, NodeCgroups):
        return (), ()
    orphans = OrphanCgroups(cgroups, registry, wait_synced, pods_on_disk)
    return (
        (ChildSpec("cgroups", cgroups.run, policy=RestartPolicy(limit=3)),),
        (ChildSpec("pod-cgroups", orphans.run),),
    )
