"""The child `memory-events`: report OOM kills in containers, from the counts of their cgroups.

It works without the kernel's log, and also sees kills of child processes that the main process
outlives. A kill that the log reported (see `oom`) is not reported twice. An idle node pays
nothing for it, and a container at its limit costs one read a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import (
    ContainerId,
    EventSink,
    ObjectRef,
    Offload,
    PodUid,
    get_logger,
    pod_fields,
)
from kubelet_trio.pressure.memory_events import Kills, MemoryEvents

log = get_logger()

# Seconds between a notice and the read: `oom` reads the kernel's log first, and notices coalesce.
_SETTLE = 1.0
_PAUSE = 1.0  # seconds at least between two looks at the running containers
_MOST_LOGGED = 1000  # entries of `logged` before those of removed containers are dropped


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container."""

    id: ContainerId
    pid: int  # 0: unknown
    started_at: float  # Unix seconds
    ref: ObjectRef  # for its events


@dataclass(slots=True)
class _Watched:
    ref: ObjectRef
    seen: Kills
    logged: int  # kills that the kernel's log had reported by then


@dataclass(slots=True)
class ContainerOomWatcher:
    """Watches the running containers. `OomWatcher` writes `logged`."""

    events: EventSink
    running: Callable[[], Iterable[RunningContainer]]
    changes: AsyncValue[Mapping[PodUid, Pod]]  # changes whenever containers do
    logged: Counter[ContainerId]
    offload: Offload
    open: Callable[[], MemoryEvents] | None  # None: disabled
    since: float = 0.0  # Unix seconds; earlier containers start with the kills counted so far
    kills: int = 0  # in total
    _watched: dict[ContainerId, _Watched] = field(default_factory=dict)
    _refused: set[ContainerId] = field(default_factory=set)  # without a cgroup of their own

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; do nothing if the kernel does not support it."""
        task_status.started()
        if self.open is None:
            await trio.sleep_forever()
            return
        # No reason to fail: without these counts `OomWatcher` still reports from the log.
        try:
            files = self.open()
        except OSError as exc:
            log.info("oom.no_memory_events", error=str(exc))
            await trio.sleep_forever()
            return
        try:
            async with trio.open_nursery() as parts:
                parts.start_soon(self._listen, files)
                await self._follow(files)
        finally:
            self._watched.clear()
            files.close()

    async def _follow(self, files: MemoryEvents) -> None:
        """Keep a watch on each running container."""
        while True:
            # Before `running`: a change during the work below then ends the wait at once.
            pods = self.changes.value
            running = {c.id: c for c in self.running() if c.pid > 0}
            for gone in self._watched.keys() - running.keys():
                files.forget(gone)
                del self._watched[gone]
            # Tried once: a container never gets a cgroup of its own later.
            self._refused &= running.keys()
            fresh = [running[c] for c in running.keys() - self._watched.keys() - self._refused]
            if fresh:
                await self._add(files, fresh)
            if len(self.logged) > _MOST_LOGGED:
                for gone in self.logged.keys() - running.keys():
                    del self.logged[gone]
            await self.changes.wait_value(lambda now, pods=pods: now is not pods)
            await trio.sleep(_PAUSE)

    async def _add(self, files: MemoryEvents, fresh: Collection[RunningContainer]) -> None:
        found = await self.offload(_watch_all, files, fresh)
        for container in fresh:
            counted = found[container.id]
            if counted is None:
                self._refused.add(container.id)
                continue
            # The kernel counts from the container's start. Kills before the agent's own start are
            # past, so an older container begins with the present counts.
            is_new = container.started_at >= self.since
            self._watched[container.id] = _Watched(
                container.ref,
                Kills(0) if is_new else counted,
                0 if is_new else self.logged[container.id],
            )
            self._compare(container.id, counted)

    async def _listen(self, files: MemoryEvents) -> None:
        while True:
            where = await files.wait()
            await trio.sleep(_SETTLE)
            # `_follow` may have dropped some during the sleep.
            where = [c for c in where if c in self._watched]
            for container_id, counted in await self.offload(_read_all, files, where):
                self._compare(container_id, counted)

    def _compare(self, container_id: ContainerId, counted: Kills | None) -> None:
        """Report new kills, unless the kernel's log has reported them."""
        watched = self._watched.get(container_id)
        if watched is None or counted is None:
            return
        before, logged = watched.seen, self.logged[container_id]
        is_reported = logged > watched.logged
        watched.seen, watched.logged = counted, logged
        killed = counted.killed - before.killed
        # memory.events changes on every hit of the limit, most of them without a kill.
        if killed <= 0:
            return
        self.kills += killed
        ref = watched.ref
        log.warning(
            "oom.counted",
            **pod_fields(ref.namespace, ref.name, ref.uid),
            containerID=container_id,
            killed=killed,
        )
        if not is_reported:
            # cgroup-v2.html: `oom` counts where the limit was hit, `oom_kill` where the victim was.
            # A kill by the pod's or the node's limit leaves the container's `oom` as it was.
            text = oom_text(killed, is_own_limit=counted.at_limit > before.at_limit)
            self.events.emit(watched.ref, "Warning", "OOMKilling", text)


def oom_text(killed: int, *, is_own_limit: bool) -> str:
    """Return the event's message: the counts do not name the processes."""
    who = "A process was" if killed == 1 else f"{killed} processes were"
    why = "its memory limit was reached" if is_own_limit else "there was no memory left for it"
    return f"{who} killed: {why}"


def _watch_all(
    files: MemoryEvents, containers: Iterable[RunningContainer]
) -> dict[ContainerId, Kills | None]:
    """Watch containers; return the counts of each, None if it cannot be watched. Blocks."""
    found: dict[ContainerId, Kills | None] = {}
    for container in containers:
        try:
            files.add(container.id, container.pid)
            found[container.id] = files.read(container.id)
        except OSError as exc:
            ref = container.ref
            log.debug(
                "oom.not_watched",
                **pod_fields(ref.namespace, ref.name, ref.uid),
                containerID=container.id,
                error=str(exc),
            )
            found[container.id] = None
    return found


def _read_all(
    files: MemoryEvents, where: Iterable[ContainerId]
) -> list[tuple[ContainerId, Kills | None]]:
    return [(container_id, files.read(container_id)) for container_id in where]
