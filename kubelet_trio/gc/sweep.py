"""The container garbage collector: remove dead containers, old sandboxes and their logs.

It runs once a minute, and under disk pressure. Pod workers remove everything of a terminated pod;
this collector removes leftovers, and bounds the dead containers of pods that restart them often. It
reads the PLEG's cache, so a round without work makes no call to the runtime.

Failures are retried a minute later. An unreachable runtime is not a failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from kubelet_trio.containers import NodeSettings, remove_links
from kubelet_trio.cri import Runtime, RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.gc.containers import ContainerPolicy, containers_to_remove, sandboxes_to_remove
from kubelet_trio.gc.log_files import pod_log_directories, remove_log_directories, remove_old_logs
from kubelet_trio.gc.node_pods import NodePods
from kubelet_trio.model import (
    ContainerRecord,
    EventSink,
    Offload,
    Phase,
    PodUid,
    RuntimePod,
    SandboxRecord,
    WallClock,
    get_logger,
    housekeeping_round,
    next_due,
    node_ref,
    pod_fields,
)
from kubelet_trio.tracing import span

log = get_logger()

T = TypeVar("T")

PERIOD = 60.0  # ContainerGCPeriod
# From this attempt on, logs of removed attempts can exist: the first is 0, and one is kept.
_MANY_ATTEMPTS = 2
_MANY_CONTAINERS = 200  # to decide on in a thread: a node may have thousands of dead ones


class ContainerCollector:
    """Removes dead containers, sandboxes and logs."""

    def __init__(
        self,
        runtime: Runtime,
        pods: NodePods,
        node: NodeSettings,
        policy: ContainerPolicy,
        *,
        events: EventSink,
        clock: WallClock,
        offload: Offload,
        relist_soon: Callable[[], None] = lambda: None,
        clears_logs: bool = True,
    ) -> None:
        """Create a collector; `run` starts it.

        Args:
            runtime: removes containers and sandboxes.
            pods: the node's pods.
            node: paths of logs, and the node's name.
            policy: the limits.
            events: for failures.
            clock: wall time, for containers' ages.
            offload: runs file work in threads.
            relist_soon: called after something was removed, to refresh the PLEG's cache.
            clears_logs: whether only this agent uses the log directories.
        """
        self._runtime = runtime
        self._pods = pods
        self._node = node
        self._policy = policy
        self._events = events
        self._clock = clock
        self._offload = offload
        self._relist_soon = relist_soon
        self._clears_logs = clears_logs
        self._turn = trio.Lock()
        self._last_error = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Collect until cancelled."""
        task_status.started()
        # Not for the sources, of which one may never answer while pods go on crashing.
        await self._pods.wait_listed()
        while True:
            with housekeeping_round("dead containers"), span("Containers/GarbageCollect"):
                await self.collect()
            await trio.sleep_until(next_due(PERIOD, Phase.CONTAINERS))

    async def collect(self, *, all_unused: bool = False) -> int:
        """Run one round; return the number of removed containers and sandboxes.

        Args:
            all_unused: also remove everything of terminated pods (under disk pressure).
        """
        async with self._turn:
            observed = self._pods.observed()
            ended = {pod.uid for pod in observed if self._pods.has_ended(pod.uid)}
            problems: list[str] = []
            decide = partial(
                containers_to_remove,
                observed,
                self._policy,
                self._clock.time(),
                ended.__contains__,
                all_unused=all_unused,
            )
            containers = await self._compute(observed, decide)
            removed = await self._remove_containers(observed, containers, problems)

            def look_again() -> tuple[list[RuntimePod], list[SandboxRecord]]:
                left = [_without(pod, removed) for pod in observed]
                return left, sandboxes_to_remove(left, ended.__contains__, all_unused=all_unused)

            # After the containers: a sandbox without containers goes in the same round.
            left, sandboxes = await self._compute(observed, look_again)
            count = len(removed) + await self._remove_sandboxes(sandboxes, problems)
            if count:
                self._relist_soon()
            for pod in observed:
                self._pods.adopt(pod.uid)
            await self._collect_logs(left, problems)
            self._report(problems)
            return count

    async def _compute(self, observed: Sequence[RuntimePod], fn: Callable[[], T]) -> T:
        """Call a function, in a thread if there is much to look at."""
        if sum(len(pod.containers) for pod in observed) < _MANY_CONTAINERS:
            return fn()
        return await self._offload(fn)

    async def _remove_containers(
        self,
        pods: Sequence[RuntimePod],
        containers: Sequence[ContainerRecord],
        problems: list[str],
    ) -> set[str]:
        removed: set[str] = set()
        pod_of = {c.id: pod for pod in pods for c in pod.containers} if containers else {}
        for container in containers:
            remove = partial(self._runtime.remove_container, container.id)
            if await self._attempt(remove, f"container {container.name}", problems):
                pod = pod_of[container.id]
                log.info(
                    "gc.container_removed",
                    **pod_fields(pod.namespace, pod.name, pod.uid),
                    containerName=container.name,
                    containerID=container.id,
                    attempt=container.attempt,
                )
                removed.add(container.id)
        return removed

    async def _remove_sandboxes(
        self, sandboxes: Sequence[SandboxRecord], problems: list[str]
    ) -> int:
        count = 0
        for sandbox in sandboxes:
            what = f"sandbox {sandbox.id}"
            # Stop is idempotent. It releases the network after an unclean end (removeSandbox in
            # kuberuntime_gc.go).
            stop = partial(self._runtime.stop_pod_sandbox, sandbox.id)
            remove = partial(self._runtime.remove_pod_sandbox, sandbox.id)
            if await self._attempt(stop, what, problems) and await self._attempt(
                remove, what, problems
            ):
                log.info("gc.sandbox_removed", id=sandbox.id, attempt=sandbox.attempt)
                count += 1
        return count

    async def _attempt(
        self, call: Callable[[], Awaitable[None]], what: str, problems: list[str]
    ) -> bool:
        try:
            await call()
        except RuntimeUnavailableError:
            return False  # `runtime/health` reports it
        except RuntimeCallError as exc:
            problems.append(f"{what}: {exc}")
            return False
        return True

    async def _collect_logs(self, pods: Sequence[RuntimePod], problems: list[str]) -> None:
        if not self._clears_logs:
            return
        try:
            found, failure = await self._offload(self._look_at_logs, pods)
            if await self._remove_directories(found, problems):
                await self._offload(self._remove_files, pods)
            elif failure is not None:
                problems.append(f"logs: {failure}")
        except OSError as exc:
            problems.append(f"logs: {exc}")

    def _look_at_logs(
        self, pods: Sequence[RuntimePod]
    ) -> tuple[Mapping[PodUid, Sequence[Path]], OSError | None]:
        """Remove logs and links, and return the log directories, and why the former failed."""
        found = pod_log_directories(self._node.pod_logs_dir)
        try:
            self._remove_files(pods)
        except OSError as exc:
            return found, exc
        return found, None

    async def _remove_directories(
        self, found: Mapping[PodUid, Sequence[Path]], problems: list[str]
    ) -> bool:
        """Remove the log directories of removed pods; return whether there was one to remove.

        A failure does not stop the others.
        """
        removed = False
        if not (self._policy.clears_unknown_logs and self._pods.are_known()):
            return removed
        for uid, directories in found.items():
            if self._pods.is_owned(uid):
                continue
            with self._pods.reclaiming(uid) as is_ours:
                if not is_ours:
                    continue
                removed = True
                try:
                    await self._offload(remove_log_directories, directories)
                except OSError as exc:
                    problems.append(f"logs: {exc}")
                    continue
                log.info("gc.logs_removed", podUID=uid, directories=list(map(str, directories)))
        return removed

    def _remove_files(self, pods: Sequence[RuntimePod]) -> None:
        """Remove logs of removed containers, and links to removed logs."""
        for pod in pods:
            if any(container.attempt >= _MANY_ATTEMPTS for container in pod.containers):
                _remove_old_logs(pod, self._node.pod_logs_dir)
        # Their links stay: during a rotation the log is missing (kubernetes/kubernetes#52172).
        running = {c.log_path for pod in pods for c in pod.running()}
        remove_links(self._node.container_logs_dir, running)

    def _report(self, problems: Sequence[str]) -> None:
        text = "; ".join(problems)
        if text and text != self._last_error:
            log.error("gc.containers_failed", error=text)
        if text:
            ref = node_ref(self._node.node_name)
            self._events.emit(ref, "Warning", "ContainerGCFailed", text)
        self._last_error = text


def _without(pod: RuntimePod, removed: set[str]) -> RuntimePod:
    if not any(container.id in removed for container in pod.containers):
        return pod
    left = tuple(c for c in pod.containers if c.id not in removed)
    return RuntimePod(pod.uid, pod.namespace, pod.name, pod.sandboxes, left, pod.observed_at)


def _remove_old_logs(pod: RuntimePod, pod_logs_dir: Path) -> None:
    directory = pod_logs_dir / f"{pod.namespace}_{pod.name}_{pod.uid}"
    for name in {container.name for container in pod.containers}:
        records = pod.of(name)
        if max(record.attempt for record in records) >= _MANY_ATTEMPTS:
            remove_old_logs(directory / name, {record.attempt for record in records})
