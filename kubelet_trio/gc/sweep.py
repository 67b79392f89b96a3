"""Removing dead containers, old sandboxes and their logs, once a minute and when asked to.

The pods' workers remove what is a pod's when it goes; this is the net below, and what keeps
pods within limits that die again and again. It acts on what the PLEG knows, so that a look
costs no call to the runtime unless there is something to remove.

What fails is tried again a minute later. A runtime that is away is no failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import trio

from kubelet_trio.containers import NodeSettings, remove_links
from kubelet_trio.cri import Runtime, RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.gc.containers import (
    ContainerPolicy,
    containers_to_remove,
    sandboxes_to_remove,
)
from kubelet_trio.gc.node_pods import NodePods
from kubelet_trio.gc.old_logs import (
    pod_log_directories,
    remove_log_directories,
    remove_old_logs,
)
from kubelet_trio.model import (
    ContainerRecord,
    EventSink,
    Offload,
    RuntimePod,
    SandboxRecord,
    WallClock,
    get_logger,
    housekeeping_round,
    node_ref,
)

log = get_logger()

PERIOD = 60.0  # ContainerGCPeriod
_MANY_ATTEMPTS = 2  # from here on a container may have logs of attempts that are forgotten


class ContainerCollector:
    """Collects dead containers and what belongs to them."""

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
        """Take the seams.

        Args:
            runtime: where containers are.
            pods: who wants what.
            node: where logs are.
            policy: the limits.
            events: told of failures.
            clock: wall time, for containers' ages.
            offload: where files are removed.
            relist_soon: asked to look at the runtime once something was removed from it.
            clears_logs: whether the log directories are this agent's alone.
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
        self._trouble = ""  # as last told

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Collect until cancelled."""
        task_status.started()
        await self._pods.wait_known()
        while True:
            with housekeeping_round("dead containers"):
                await self.collect()
            await trio.sleep(PERIOD)

    async def collect(self, *, all_unused: bool = False) -> int:
        """Remove what may go; return how many containers and sandboxes that was.

        Args:
            all_unused: the node is short of room: all that is left of pods that are over goes.
        """
        async with self._turn:
            observed = self._pods.observed()
            problems: list[str] = []
            containers = containers_to_remove(
                observed,
                self._policy,
                self._clock.time(),
                self._pods.has_ended,
                all_unused=all_unused,
            )
            removed = await self._remove_containers(containers, problems)
            left = [_without(pod, removed) for pod in observed]
            sandboxes = sandboxes_to_remove(left, self._pods.has_ended, all_unused=all_unused)
            count = len(removed) + await self._remove_sandboxes(sandboxes, problems)
            if count:
                self._relist_soon()
            for pod in observed:
                self._pods.adopt(pod.uid)
            await self._collect_logs(left, problems)
            self._tell(problems)
            return count

    async def _remove_containers(
        self, containers: Sequence[ContainerRecord], problems: list[str]
    ) -> set[str]:
        removed: set[str] = set()
        for container in containers:
            remove = partial(self._runtime.remove_container, container.id)
            if await self._attempt(remove, f"container {container.name}", problems):
                log.info(
                    "gc.container_removed",
                    container=container.name,
                    id=container.id,
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
            # Stopping one that was stopped frees what an unclean end has left of its network.
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
            return False  # health tells of it
        except RuntimeCallError as exc:
            problems.append(f"{what}: {exc}")
            return False
        return True

    async def _collect_logs(self, pods: Sequence[RuntimePod], problems: list[str]) -> None:
        if not self._clears_logs:
            return
        try:
            await self._remove_directories(problems)
            await self._offload(self._remove_files, pods)
        except OSError as exc:
            problems.append(f"logs: {exc}")

    async def _remove_directories(self, problems: list[str]) -> None:
        """Remove the log directories of pods that are gone; one that stays keeps no other."""
        found = await self._offload(pod_log_directories, self._node.pod_logs_dir)
        for uid, directories in found.items():
            if self._pods.is_owned(uid):
                continue
            with self._pods.reclaiming(uid) as is_ours:
                if not is_ours:
                    continue
                try:
                    await self._offload(remove_log_directories, directories)
                except OSError as exc:
                    problems.append(f"logs: {exc}")
                    continue
                log.info("gc.logs_removed", uid=uid, directories=list(map(str, directories)))

    def _remove_files(self, pods: Sequence[RuntimePod]) -> None:
        """Remove the logs of containers that are gone, and links to logs that are."""
        for pod in pods:
            if any(container.attempt >= _MANY_ATTEMPTS for container in pod.containers):
                _remove_old_logs(pod, self._node.pod_logs_dir)
        running = {c.log_path for pod in pods for c in pod.running()}
        remove_links(self._node.container_logs_dir, running)

    def _tell(self, problems: Sequence[str]) -> None:
        text = "; ".join(problems)
        if text and text != self._trouble:
            log.error("gc.containers_failed", error=text)
        if text:
            ref = node_ref(self._node.node_name)
            self._events.emit(ref, "Warning", "ContainerGCFailed", text)
        self._trouble = text


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
