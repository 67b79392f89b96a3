"""Tear a pod down with a stack of context managers, which removes its parts in a safe order.

`tear_down` enters an async context manager for each part that the pod has on the node, in the
order in which they depend on each other: directories, cgroup, volumes, claims, sandbox,
containers.
Entering does nothing. Leaving removes the part, so the parts are removed in reverse order.

Every step may be repeated: it is no error if the part is already gone. If a step fails, its
exception leaves the stack, and the steps after it do not run: a volume is never unmounted under a
container that could not be stopped. The worker then retries from the start. A cancellation leaves
the stack in the same way and stops nothing; `GuardedRuntime` completes the calls in flight. The
decision is on disk by then, and the next agent continues with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.cgroups import CGROUP_ERRORS
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.managers import ClaimError
from kubelet_trio.model import (
    ContainerRecord,
    RuntimePod,
    about_pod,
    get_logger,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.pods.plan import (
    effective_grace,
    remaining_grace,
    stop_order,
)
from kubelet_trio.pods.records.files import PodFiles
from kubelet_trio.pods.records.remains import is_at_rest, remove_dead
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.concurrency import run_together
from kubelet_trio.pods.steps.errors import TeardownIncompleteError
from kubelet_trio.pods.steps.progress import Progress
from kubelet_trio.pods.steps.stops import ContainerStopper, about_container, stop_message
from kubelet_trio.pods.types import DISRUPTIONS, EndReason, TerminationRequest
from kubelet_trio.tracing import pod_attributes, span
from kubelet_trio.volumes import VOLUME_ERRORS

log = get_logger()


@dataclass(frozen=True, slots=True)
class Teardown:
    """One teardown.

    If `remove` is False, the pod's manifest still exists, and its dead containers and logs are
    kept for readers. Otherwise everything is removed, except the logs of a pod that `returns`: the
    restart counts go on from them.
    """

    services: PodServices
    pod: Pod
    request: TerminationRequest
    remove: bool
    returns: Callable[[], bool]  # whether it is to run again after the removal
    stopper: ContainerStopper
    is_known: bool  # nothing of it can exist that was not observed
    recorded: Callable[[], Awaitable[None]]  # waits until the decision is on disk, or cannot be
    stopped: Callable[[RuntimePod], Awaitable[None]]  # called once the containers have stopped
    at_rest: Callable[[], None]  # called once nothing of it runs
    left: Callable[[str], None]  # called with the reason if dead containers cannot be removed
    progress: Progress

    @property
    def clears(self) -> bool:
        """Whether its dead containers are removed."""
        # Those of an evicted pod at once, but not its logs: ShouldPodContentBeRemoved of
        # pkg/kubelet/pod_workers.go.
        return self.remove or self.request.reason is EndReason.EVICTED


async def tear_down(teardown: Teardown) -> None:
    """Tear the pod down. Raises one of `TEARDOWN_ERRORS` if that must be retried."""
    async with AsyncExitStack() as stack:  # left from the last line to the first
        await stack.enter_async_context(adopt_directories(teardown))
        await stack.enter_async_context(adopt_cgroup(teardown))
        await stack.enter_async_context(adopt_volumes(teardown))
        # Upstream's spans of the two stages: what runs ends, then the rest is removed.
        with span("syncTerminatingPod", teardown.pod, pod_attributes):
            await _end_running(teardown)
        with span("syncTerminatedPod", teardown.pod, pod_attributes):
            await stack.aclose()


async def _end_running(teardown: Teardown) -> None:
    # On disk before the first stop, so that a restarted agent continues with it. If the write
    # fails, the decision in memory is enough.
    teardown.progress.at("recording the decision to end it")
    await teardown.recorded()
    observed = await _fresh(teardown)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(adopt_claims(teardown))
        reports = (partial(_report_stopped, teardown, observed),)
        await stack.enter_async_context(adopt_sandbox(teardown, reports))
        await stack.enter_async_context(adopt_containers(teardown, observed))


async def remove_rest(teardown: Teardown) -> None:
    """Remove what `tear_down` has kept of a pod: dead containers, logs, directories.

    Raises as `tear_down` does.
    """
    with span("syncTerminatedPod", teardown.pod, pod_attributes):
        teardown.progress.at("recording the decision to end it")
        await teardown.recorded()
        observed = await _fresh(teardown)
        if not is_at_rest(observed):  # a call that was cut short took effect after the teardown
            await tear_down(teardown)
            return
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(adopt_directories(teardown))
            await stack.enter_async_context(adopt_sandbox(teardown))


async def _fresh(teardown: Teardown) -> RuntimePod:
    """Return the pod, listed if a cancelled sync may have created more than was observed."""
    uid, observer = pod_uid(teardown.pod), teardown.services.observer
    if teardown.is_known:
        observed = observer.get(uid)
    else:
        teardown.progress.at("listing what the runtime has of it")
        observed = await observer.refresh(uid, listing=True)
    if is_at_rest(observed):
        teardown.at_rest()
    return observed


# No `try` around the yields below: an exception, Cancelled above all, must stop nothing.


@asynccontextmanager
async def adopt_containers(teardown: Teardown, observed: RuntimePod) -> AsyncIterator[None]:
    """Stop the containers: sidecars last, in reverse order, all in one grace period."""
    yield
    running = {c.name: c for c in observed.running()}
    teardown.progress.at("")
    order = stop_order(teardown.pod, running)
    turns = [_Turn(0), _Turn(len(order.main)), *(_Turn(1) for _ in order.sidecars)]
    stages = [order.main, *((name,) for name in order.sidecars)]
    steps = [partial(_stop, teardown, running[name], _Turn(0), _Turn(1)) for name in order.others]
    for stage, (turn, following) in zip(stages, pairwise(turns), strict=True):
        steps += [partial(_stop, teardown, running[name], turn, following) for name in stage]
    await run_together(steps, TEARDOWN_ERRORS)


async def _report_stopped(teardown: Teardown, before: RuntimePod) -> None:
    """Read how the containers ended that ran `before`, and report it."""
    ids = [c.id for c in {c.name: c for c in before.running()}.values()]
    refresh = teardown.services.observer.refresh
    observed = await refresh(pod_uid(teardown.pod), containers=ids) if ids else before
    await teardown.stopped(observed)


@dataclass(slots=True, eq=False)
class _Turn:
    """Makes a stage of containers wait until all `missing` ones of the stage before have stopped.

    preStop hooks do not wait for it, they begin at once. If a container of a stage cannot be
    stopped, the stages after it are left for the next try.
    """

    missing: int
    is_off: bool = False
    changed: trio.Event = field(default_factory=trio.Event)

    async def wait(self, seconds: float) -> None:
        """Wait until it has come or is off, for as long as the grace period lasts."""
        # waitForTurn of kuberuntime_termination_order.go: then all that is left stops at once.
        with trio.move_on_after(seconds):
            if self.missing and not self.is_off:
                await self.changed.wait()

    def stopped(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.changed.set()

    def call_off(self) -> None:
        self.is_off = True
        self.changed.set()


async def _stop(
    teardown: Teardown, container: ContainerRecord, turn: _Turn, following: _Turn
) -> None:
    with span("stopContainer", container, about_container):
        await _stop_in_turn(teardown, container, turn, following)


async def _stop_in_turn(
    teardown: Teardown, container: ContainerRecord, turn: _Turn, following: _Turn
) -> None:
    pod, request, clock = teardown.pod, teardown.request, teardown.services.clock
    grace = effective_grace(pod, request)
    teardown.stopper.announce(pod, container, stop_message(container))
    left = remaining_grace(request.requested_at, grace, clock.time())
    await teardown.stopper.run_pre_stop(pod, container, left, request)
    await turn.wait(remaining_grace(request.requested_at, grace, clock.time()))
    if turn.is_off:
        following.call_off()
        return
    left = remaining_grace(request.requested_at, grace, clock.time())
    try:
        await teardown.stopper.stop_now(container, left)
    except RuntimeCallError:
        following.call_off()
        raise
    following.stopped()


@asynccontextmanager
async def adopt_sandbox(
    teardown: Teardown, reports: Sequence[Callable[[], Awaitable[None]]] = ()
) -> AsyncIterator[None]:
    """Stop the sandboxes; remove them and the dead containers if the teardown `clears`.

    `reports` run while they are being stopped: what has ended must be reported before it is
    removed, but a stop removes nothing.
    """
    yield
    teardown.progress.at("stopping and removing the sandbox")
    runtime = teardown.services.runtime
    observer, uid = teardown.services.observer, pod_uid(teardown.pod)
    ready = [sandbox.id for sandbox in observer.get(uid).sandboxes if sandbox.ready]

    async def stop() -> None:
        for sandbox_id in ready:
            await runtime.stop_pod_sandbox(sandbox_id)

    await run_together((stop, *reports), TEARDOWN_ERRORS)
    observed = observer.get(uid)
    if not any(observed.running()):
        teardown.at_rest()  # before anything is removed: that may take long, or never succeed
    trouble = await remove_dead(runtime, observed, stopped=ready) if teardown.clears else ""
    if trouble and not teardown.remove:
        log.warning("pod.remains", **about_pod(teardown.pod), error=trouble)
    if trouble:
        # All containers have stopped, but an interrupted start can leave a process that the runtime
        # does not know, and that prevents it from ever removing the container (containerd 1.6:
        # "cannot delete running task"). Removing the cgroup kills that process.
        await teardown.services.cgroups.remove(pod_uid(teardown.pod))
    if observed.exists:
        await _expect_gone(teardown, observed, trouble)


async def _expect_gone(teardown: Teardown, before: RuntimePod, trouble: str) -> None:
    """Observe the result. Raises `TeardownIncompleteError` if something is left."""
    observed = await _after(teardown, before, trouble)
    if not is_at_rest(observed):
        raise TeardownIncompleteError(teardown.pod)
    if teardown.remove and observed.exists:
        if not trouble:
            raise TeardownIncompleteError(teardown.pod)
        teardown.left(trouble)  # dead containers do not delay the steps that follow


async def _after(teardown: Teardown, before: RuntimePod, trouble: str) -> RuntimePod:
    if trouble or not teardown.is_known:
        # Once more: a call that was cancelled earlier may have taken effect late.
        return await _fresh(replace(teardown, is_known=False))
    uid, observer = pod_uid(teardown.pod), teardown.services.observer
    if teardown.clears:
        removed = [s.id for s in before.sandboxes] + [c.id for c in before.containers]
        return await observer.refresh(uid, removed=removed)
    stopped = [sandbox.id for sandbox in before.sandboxes if sandbox.ready]
    return await observer.refresh(uid, sandboxes=stopped) if stopped else before


# What may go wrong in a teardown; anything else is a bug.
TEARDOWN_ERRORS = (
    RuntimeCallError,
    *VOLUME_ERRORS,
    *CGROUP_ERRORS,
    ClaimError,
    TeardownIncompleteError,
    OSError,
)


@asynccontextmanager
async def adopt_claims(teardown: Teardown) -> AsyncIterator[None]:
    """Give back the devices that the pod has claimed."""
    yield
    # KEP-4381: no container uses them any more, and the phase is not terminal before they are back
    # (`StatusInput.has_claims`): the scheduler gives them to others then.
    uid, claims = pod_uid(teardown.pod), teardown.services.claims
    if claims.holds(uid):
        teardown.progress.at("giving back devices of claims")
        await claims.unprepare(teardown.pod)
        await teardown.stopped(teardown.services.observer.get(uid))


@asynccontextmanager
async def adopt_volumes(teardown: Teardown) -> AsyncIterator[None]:
    """Unmount and remove the volumes; one that cannot be unmounted stays and is an error."""
    yield
    teardown.progress.at("unmounting the volumes")
    # umount(2) fails with EBUSY while a process uses the volume: its containers have stopped.
    with span("unmountVolumes"):
        await teardown.services.volumes.unmount(pod_uid(teardown.pod))


@asynccontextmanager
async def adopt_cgroup(teardown: Teardown) -> AsyncIterator[None]:
    """Remove the pod's cgroup, which is empty by now."""
    yield
    teardown.progress.at("removing the cgroup")
    # A cgroup with a process in it cannot be removed (cgroups(7)).
    await teardown.services.cgroups.remove(pod_uid(teardown.pod))


@asynccontextmanager
async def adopt_directories(teardown: Teardown) -> AsyncIterator[None]:
    """Remove logs, their links and the pod's own directory, if the pod is to be gone.

    The logs of a pod that returns stay.
    """
    yield
    if not teardown.remove:
        return
    services = teardown.services
    teardown.progress.at("removing logs and directories")
    files = PodFiles(teardown.pod, services.node())
    # The Go kubelet has the dead containers of such a pod until the next garbage collection, and
    # counts on from them.
    first = files.unlink_logs if teardown.returns() else files.remove_logs
    await services.records.remove(pod_uid(teardown.pod), first=first)


# minTimeout of killPodNow, pkg/kubelet/pod_workers.go.
_LEAST_LATE = 10.0  # seconds


def late_after(grace: float) -> float:
    """Return the seconds after which a pod of this grace period is late: one and a half of it."""
    return max(_LEAST_LATE, grace * 1.5)


async def report_when_late(teardown: Teardown) -> None:
    """Emit an event when a pod that the node ends does not end in time.

    The caller cancels this once the pod has ended.
    """
    services, pod, request = teardown.services, teardown.pod, teardown.request
    # Evictions, preemptions and shutdowns end a pod through killPodNow.
    if request.reason not in DISRUPTIONS:
        return
    due = request.requested_at + late_after(effective_grace(pod, request))
    left = due - services.clock.time()
    if left <= 0:
        return  # an earlier try has emitted it
    await trio.sleep(left)
    services.events.emit(
        pod_object_ref(pod),
        "Warning",
        "ExceededGracePeriod",
        "Container runtime did not kill the pod within specified grace period.",
    )
