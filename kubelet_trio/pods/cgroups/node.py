"""The node's cgroups: made before pods need them, and kept in line with the pods.

    <cgroup root>/kubepods             limited to node allocatable
    <cgroup root>/kubepods/burstable   CPU weight of the requests of its pods
    <cgroup root>/kubepods/besteffort  the least CPU weight
                  …/pod<uid>           made just before the pod's sandbox

A pod's worker calls `ensure` and `remove`; one task (`run`) does the rest, woken by both and once
a minute. It takes over the cgroups of an earlier agent: it writes the limits of the QoS classes
again, and those of each pod once.

If cgroups are not writable or a controller is missing, the agent logs it once, and pods run without
these limits: the runtime still limits containers as far as it can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue, wait_any

from kubelet_trio.cgroups import (
    MIN_SHARES,
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
    protected_memory,
    qos_cgroup_limits,
    unreserved_memory,
    without_quota,
)
from kubelet_trio.model import (
    Bell,
    EventSink,
    Meter,
    ObjectRef,
    Phase,
    PodUid,
    get_logger,
    is_terminal,
    next_due,
    node_ref,
    pod_uid,
)
from kubelet_trio.pods.cgroups.tree import CgroupOperations, PodCgroupRemover

log = get_logger()

# periodicQOSCgroupUpdateInterval in pkg/kubelet/cm/qos_container_manager_linux.go.
_PERIOD = 60.0  # seconds until a round without a wake-up
_GATHER = 0.2  # seconds in which wake-ups are gathered into one round
_FAILED = "FailedNodeAllocatableEnforcement"
_V1 = "cgroup v1 support is in maintenance mode, please migrate to cgroup v2"
_ENFORCED = "NodeAllocatableEnforced"
_PROTECTED = (
    "kubelet_memory_qos_node_memory_min_bytes",
    "kubelet_memory_qos_node_memory_low_bytes",
)
# Pods without huge pages do not need this controller: upstream does not warn either.
_OPTIONAL = frozenset({"hugetlb"})


@dataclass(frozen=True, slots=True)
class ReservedCgroup:
    """A cgroup of system daemons, limited to its reservation; it must exist."""

    label: str  # as events name it: System Reserved, Kube Reserved
    path: str
    budget: Mapping[str, int]  # nano-units by resource
    compressible_only: bool = False


@dataclass(frozen=True, slots=True)
class CgroupPolicy:
    """The settings of `KubeletConfiguration` for the node's cgroups. Amounts in nano-units."""

    budget: Mapping[str, int] = field(default_factory=dict)  # of all pods, `pid` included
    pids_limit: int = -1  # podPidsLimit
    reserved: tuple[ReservedCgroup, ...] = ()
    reserve_percent: int | None = None  # qosReserved.memory
    allocatable_memory: int = 0  # bytes, of which `reserve_percent` is reserved; 0: unknown
    # Said at the start already: in a user namespace.
    is_denied: bool = False  # no cgroup can be made
    known_missing: frozenset[str] = frozenset()  # controllers


@dataclass(frozen=True, slots=True)
class PlainCgroups:
    """Without QoS cgroups: the runtime makes a pod's cgroup, the agent removes leftovers."""

    tree: Callable[[CgroupDriver], PodCgroupRemover]
    node: Callable[[], NodeSettings]

    async def ensure(self, pod: Pod) -> None:
        await trio.lowlevel.checkpoint()

    async def read(self, pod: Pod) -> CgroupLimits | None:
        await trio.lowlevel.checkpoint()
        return None  # the runtime gives it no limits of the pod

    async def limit(self, pod: Pod, limits: CgroupLimits) -> None:
        await trio.lowlevel.checkpoint()

    async def memory_usage(self, pod: Pod) -> int | None:
        await trio.lowlevel.checkpoint()
        return None

    async def remove(self, uid: PodUid) -> None:
        """Remove the rest of the pod's cgroup; if that is denied, the pod ends without it."""
        try:
            await self.tree(self.node().cgroup_driver).remove(uid)
        except CgroupsDeniedError as exc:
            log.info("cgroups.not_removed", podUID=uid, error=str(exc))


class NodeCgroups:
    """Keeps the cgroups above pods, and limits those of pods; see the module."""

    def __init__(
        self,
        policy: CgroupPolicy,
        tree: Callable[[CgroupDriver], CgroupOperations],
        node: Callable[[], NodeSettings],
        events: EventSink,
        pods: AsyncValue[Mapping[PodUid, Pod]],
        wait_runtime: Callable[[], Awaitable[object]],
        settled: Set[PodUid] = frozenset(),
        has_no_quota: Callable[[Pod], bool] = lambda _pod: False,
        meter: Meter | None = None,
    ) -> None:
        """Args:
        policy: the limits.
        tree: opens the cgroups of a driver.
        node: returns the node's current settings; the runtime may name another driver.
        events: the node's events.
        pods: the pods with their statuses.
        wait_runtime: waits until the runtime is ready; its driver is not known before.
        settled: the pods on record of an earlier agent, without those that were being resized.
        has_no_quota: whether a pod has CPUs of its own, and no CFS quota.
        meter: shows how much memory is protected from reclaim.
        """
        self._policy = policy
        self._make_tree = tree
        self._node = node
        self._events = events
        self._pods = pods
        self._wait_runtime = wait_runtime
        self._settled = settled
        self._has_no_quota = has_no_quota
        self._meter = meter or Meter()
        self._making = trio.Lock()  # two workers may need the levels above pods at once
        self._rooted: CgroupDriver | None = None  # the driver under which these were made
        self._denied = policy.is_denied
        self._enforced: set[str] = set()
        # What the levels above pods were last limited to, without refusals, and by what: the class
        # Guaranteed and the budget limit the same cgroup in different ways.
        self._applied: dict[tuple[str, CgroupName], CgroupLimits] = {}
        self._limited: set[PodUid] = set()  # pods whose limits this agent writes
        # One write at a time: that of the take-over may have the limits of before a resize.
        self._turns: defaultdict[PodUid, trio.Lock] = defaultdict(trio.Lock)
        self._missing = set(policy.known_missing)
        self._trouble: dict[str, str] = {}  # by cgroup, as last logged
        self._wake = Bell()

    # For pods' workers

    async def ensure(self, pod: Pod) -> None:
        """Make the pod's cgroup and limit it. Does nothing if cgroups are not writable.

        Raises `CgroupError`.
        """
        if self._denied:
            return
        node, uid = self._node(), pod_uid(pod)
        try:
            limits = self._limits(pod, node)
        except ValueError as exc:
            raise CgroupError(str(exc)) from exc
        try:
            async with self._making:
                if self._rooted != node.cgroup_driver:
                    await self._make_roots(node)
            async with self._turns[uid]:
                self._limited.add(uid)
                written = await self._tree().apply(self._name(pod), limits)
        except CgroupsDeniedError as exc:
            self._deny(exc)
            return
        self._log_missing(written)
        if written.failures:
            raise CgroupError("; ".join(written.failures))
        # The CPU weight of the pod's class follows the requests of its pods.
        self._wake.ring()

    async def read(self, pod: Pod) -> CgroupLimits | None:
        """Return the limits of the pod's cgroup; None if it does not exist. Raises `CgroupError`.

        None also if cgroups are not writable: then there is nothing to keep in order.
        """
        return None if self._denied else await self._tree().read(self._name(pod))

    async def limit(self, pod: Pod, limits: CgroupLimits) -> None:
        """Limit the pod's cgroup, which exists. Does nothing if cgroups are not writable.

        Raises `CgroupError`.
        """
        if self._denied:
            return
        path, uid = cgroup_path(self._name(pod), self._node().cgroup_driver), pod_uid(pod)
        async with self._turns[uid]:
            self._limited.add(uid)
            written = await self._tree().limit(path, limits)
        self._log_missing(written)
        if written.failures:
            raise CgroupError("; ".join(written.failures))
        self._wake.ring()  # the weight of the pod's class

    async def memory_usage(self, pod: Pod) -> int | None:
        """Return the memory usage of the pod's cgroup in bytes; None if it cannot be read."""
        return None if self._denied else await self._tree().memory_usage(self._name(pod))

    async def remove(self, uid: PodUid) -> None:
        """Kill what still runs in the pod's cgroup and remove it, unless that is denied."""
        self._limited.discard(uid)
        self._turns.pop(uid, None)
        try:
            await self._tree().remove(uid)
        except CgroupsDeniedError as exc:
            self._deny(exc)
        self._wake.ring()

    # The task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the levels above pods and take over the cgroups of pods, until cancelled."""
        task_status.started()
        await self._wait_runtime()
        if self._node().cgroup_version == 1:
            self._events.emit(self._ref(), "Warning", "CgroupV1", _V1)
        while not self._denied:
            self._wake.clear()
            before = self._pods.value.keys()
            await self._round()
            with trio.move_on_at(next_due(_PERIOD, Phase.NODE_CGROUPS)) as quiet:
                await wait_any(self._wake.wait_ring, partial(self._wait_other_pods, before))
                await trio.sleep(_GATHER)
            if quiet.cancelled_caught:
                self._applied.clear()  # somebody else may have changed them
        # A permanent child must not return.
        await trio.sleep_forever()

    async def _wait_other_pods(self, before: Set[PodUid]) -> None:
        await self._pods.wait_value(lambda pods: pods.keys() != before)

    async def list_pods(self) -> frozenset[PodUid]:
        """Return the pods that have a cgroup."""
        return frozenset() if self._denied else await self._tree().list_pods()

    async def remove_empty(self, uid: PodUid) -> None:
        """Remove a pod's cgroup that is empty. Raises `CGROUP_ERRORS`."""
        await self._tree().remove_empty(uid)

    async def starve(self, uid: PodUid) -> None:
        """Give the processes in a pod's cgroup the least CPU weight.

        Raises `CGROUP_ERRORS`.
        """
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
            # No reason to restart the child: pods run with the limits that they have.
            self._log_failures("cgroups", (str(exc),))
        else:
            self._log_failures("cgroups", ())

    async def _make_roots(self, node: NodeSettings) -> None:
        """Make the cgroup of all pods, limited to the budget, and the QoS classes' in it."""
        root = parse_cgroup(node.cgroup_root)
        if self._rooted != node.cgroup_driver:
            self._applied.clear()  # the other driver names other cgroups
        # The class Guaranteed has no cgroup of its own: its pods are directly in kubepods
        # (qos_container_manager_linux.go).
        name = qos_cgroup("Guaranteed", root)
        limits = node_cgroup_limits(self._policy.budget, node.hugepage_sizes)
        # A refused one is tried in each round: cgroup v1 refuses a memory limit below the usage,
        # until evictions have reduced that (enforceNodeAllocatableCgroups).
        written = await self._apply("budget", name, limits)
        self._log_missing(written)
        self._report(
            "pods",
            "Updated Node Allocatable limit across pods",
            f"Failed to update Node Allocatable Limits [{' '.join(map(_quoted, name))}]",
            written.failures,
        )
        if self._rooted != node.cgroup_driver:
            await self._make_classes(node, root)
            self._rooted = node.cgroup_driver

    async def _make_classes(self, node: NodeSettings, root: CgroupName) -> None:
        # What the MemoryQoS gate has reserved is taken back once, at the start, as upstream does.
        unreserved = unreserved_memory(node)
        for qos, limits in qos_cgroup_limits((), node).items():
            if qos != "Guaranteed" or unreserved:
                limits = replace(limits, unified={**limits.unified, **unreserved})
                await self._tree().apply(qos_cgroup(qos, root), limits)

    async def _apply(self, by: str, name: CgroupName, limits: CgroupLimits) -> Written:
        """Limit a level above pods, unless it has these limits since the last rewrite of all."""
        if self._applied.get((by, name)) == limits:
            return Written()
        self._applied.pop((by, name), None)
        written = await self._tree().apply(name, limits)
        if not written.failures:
            self._applied[by, name] = limits
        return written

    async def _weigh_classes(self, node: NodeSettings, pods: list[Pod]) -> None:
        limits = qos_cgroup_limits(
            pods,
            node,
            allocatable_memory=self._policy.allocatable_memory,
            reserve_percent=self._policy.reserve_percent,
        )
        if (protected := protected_memory(limits)) is not None:
            for gauge, size in zip(_PROTECTED, protected, strict=True):
                self._meter.set(gauge, size)
        for qos, wanted in limits.items():
            name = qos_cgroup(qos, parse_cgroup(node.cgroup_root))
            written = await self._apply(qos, name, wanted)
            if written.failures and wanted.memory is not None:
                # cgroup v1 refuses a limit below the usage, so the usage becomes the limit
                # (retrySetMemoryReserve in pkg/kubelet/cm/qos_container_manager_linux.go).
                used = await self._tree().memory_usage(name)
                if used is not None and used > wanted.memory:
                    written = await self._tree().apply(name, replace(wanted, memory=used))
            self._log_missing(written)
            self._log_failures(qos, written.failures)

    async def _hold_reserved(self) -> None:
        """Limit the cgroups of system daemons to what `kubeReserved` and the like reserve."""
        node = self._node()
        # enforceExistingCgroup, whatever memoryReservationPolicy says.
        protected = node.memory_qos and node.cgroup_version == 2
        for reserved in self._policy.reserved:
            # Once: upstream's enforceNodeAllocatableCgroups runs only at the start.
            if reserved.label in self._enforced:
                continue
            driver = self._node().cgroup_driver
            path = cgroup_path(parse_existing(reserved.path, driver), driver)
            if not await self._tree().exists(path):
                failures: tuple[str, ...] = (f"{_quoted(reserved.path)} cgroup does not exist",)
            else:
                limits = node_cgroup_limits(
                    reserved.budget,
                    node.hugepage_sizes,
                    compressible_only=reserved.compressible_only,
                    protected=protected,
                )
                failures = (await self._tree().limit(path, limits)).failures
            self._report(
                reserved.label,
                f"Updated limits on {reserved.label.split()[0].lower()} reserved cgroup "
                f"{reserved.path}",
                f"Failed to enforce {reserved.label} Cgroup Limits on {_quoted(reserved.path)}",
                failures,
            )

    async def _take_over(self, node: NodeSettings, pods: list[Pod]) -> None:
        """Limit the cgroups that an earlier agent made for pods; create none."""
        unknown = [pod for pod in pods if pod_uid(pod) not in self._limited]
        found = await self._tree().list_pods() if unknown else frozenset()
        for pod in unknown:
            uid = pod_uid(pod)
            if uid not in found:
                continue
            async with self._turns[uid]:
                if uid not in self._limited:  # its worker may have written them meanwhile
                    self._limited.add(uid)
                    await self._take_over_pod(node, pod)

    async def _take_over_pod(self, node: NodeSettings, pod: Pod) -> None:
        uid, path = pod_uid(pod), cgroup_path(self._name(pod), node.cgroup_driver)
        # Without a record the QoS class is a guess: the cgroup may be in another class.
        if not await self._tree().exists(path):
            return
        limits = self._limits(pod, node)
        if uid not in self._settled:
            # Its containers may have higher limits: its worker applies these, in order.
            limits = replace(limits, cpu_quota=None, cpu_period=None, memory=None)
        written = await self._tree().limit(path, limits)
        self._log_failures(uid, written.failures)

    def _limits(self, pod: Pod, node: NodeSettings) -> CgroupLimits:
        limited = without_quota(node) if self._has_no_quota(pod) else node
        return pod_cgroup_limits(pod, limited, self._policy.pids_limit)

    def _name(self, pod: Pod) -> CgroupName:
        return pod_cgroup(pod_uid(pod), pod_qos(pod), parse_cgroup(self._node().cgroup_root))

    def _tree(self) -> CgroupOperations:
        return self._make_tree(self._node().cgroup_driver)

    # Logs and events

    def _ref(self) -> ObjectRef:
        return node_ref(self._node().node_name)

    def _deny(self, exc: CgroupsDeniedError) -> None:
        if not self._denied:
            self._denied = True
            log.warning(
                "cgroups.denied", error=str(exc), effect="pods have no limits beside containers'"
            )

    def _log_missing(self, written: Written) -> None:
        missing = written.missing - self._missing - _OPTIONAL
        if missing:
            self._missing |= missing
            log.warning(
                "cgroups.controllers_missing",
                controllers=sorted(missing),
                effect="pods are not limited by them",
            )

    def _log_failures(self, what: str, failures: tuple[str, ...]) -> None:
        text = "; ".join(failures)
        if text and self._trouble.get(what) != text:
            log.warning("cgroups.not_limited", of=what, error=text)
        self._trouble[what] = text

    def _report(self, what: str, done: str, failed: str, failures: tuple[str, ...]) -> None:
        """Emit an event for the first success, and for each failure."""
        ref = self._ref()
        text = "; ".join(failures)
        if not text and what not in self._enforced:
            self._enforced.add(what)
            self._events.emit(ref, "Normal", _ENFORCED, done)
        elif text:
            self._enforced.discard(what)
            self._events.emit(ref, "Warning", _FAILED, f"{failed}: {text}")


def _is_active(pod: Pod) -> bool:
    return not is_terminal(pod.status)


def _quoted(name: str) -> str:
    return f'"{name}"'  # as Go's %q; no path of a cgroup has a quote
