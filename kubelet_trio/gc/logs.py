"""Rotates the logs of running containers: the child `logs` of `gc`.

Every `interval` the sizes of all live logs are looked at in one go. One that has reached
`max_size` is renamed and the runtime asked to go on in a new file; older ones are compressed,
the oldest removed, so that no more than `max_files` are left of an instance. No step needs
memory of another: a round finds out from the names what an agent that died left half done. The
worst of it is a log that was renamed and not reopened; its container writes into the rotated
file until the next round finds no live log and has it reopened. Nothing is lost by that.

A container that has ended keeps its last log as it is: an empty one would be of no use.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from kubelet_trio.cri import Runtime, RuntimeCallError, RuntimeObjectNotFoundError
from kubelet_trio.gc.log_files import log_sizes, make_room, put_back, set_aside
from kubelet_trio.model import ContainerId, Meter, Offload, WallClock, get_logger

log = get_logger()

# Seconds that a rename and its reopening may go on after the agent was told to stop.
_FINISH = 5.0
# Seconds until a log that stayed away after a reopening is asked for again.
_ABSENT = 300.0


@dataclass(frozen=True, slots=True)
class LogRotationPolicy:
    """When logs are rotated and what is kept: the containerLog* fields of the configuration."""

    max_size: int = 10 << 20  # bytes; less than 0: logs are not rotated
    max_files: int = 5  # of one instance, the live one included; at least 2
    max_workers: int = 1  # rotations at a time
    interval: float = 10.0  # seconds between looks


@dataclass(frozen=True, slots=True)
class RunningLog:
    """A running container and the log that it writes."""

    container_id: ContainerId
    path: str  # absolute, on the host


@dataclass(slots=True)
class LogRotation:
    """Keeps the logs of running containers small."""

    runtime: Runtime
    running: Callable[[], Iterable[RunningLog]]
    policy: LogRotationPolicy
    clock: WallClock
    offload: Offload
    meter: Meter = field(default_factory=Meter)
    _absent: dict[ContainerId, float] = field(default_factory=dict)  # asked for again at
    _trouble: dict[ContainerId, str] = field(default_factory=dict)  # as last logged

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look until cancelled; ready at once."""
        task_status.started()
        while True:
            await trio.sleep(self.policy.interval)
            await self.sweep()

    async def sweep(self) -> None:
        """Look at every running container's log once, and rotate those that are large."""
        logs = {entry.container_id: entry for entry in self.running() if entry.path}
        self._trouble = {i: t for i, t in self._trouble.items() if i in logs}
        sizes = await self._sizes(logs.values())
        logs = {i: entry for i, entry in logs.items() if entry.path in sizes}
        self._absent = {
            i: until
            for i, until in self._absent.items()
            if i in logs and sizes[logs[i].path] is None
        }
        due = [e for e in logs.values() if self._is_due(e, sizes[e.path])]
        limit = trio.Semaphore(self.policy.max_workers)
        async with trio.open_nursery() as workers:
            for entry in due:
                workers.start_soon(self._work, entry, sizes[entry.path] is None, limit)

    async def _sizes(self, logs: Iterable[RunningLog]) -> dict[str, int | None]:
        """Return the sizes of the logs by path, without those that cannot be told."""
        logs = list(logs)
        found = await self.offload(log_sizes, [entry.path for entry in logs])
        sizes: dict[str, int | None] = {}
        for entry in logs:
            size = found[entry.path]
            if isinstance(size, OSError):
                self._tell(entry, str(size))
            else:
                sizes[entry.path] = size
        return sizes

    def _is_due(self, entry: RunningLog, size: int | None) -> bool:
        if size is None:
            return self._absent.get(entry.container_id, 0.0) <= trio.current_time()
        return size >= self.policy.max_size

    async def _work(self, entry: RunningLog, is_absent: bool, limit: trio.Semaphore) -> None:
        async with limit:
            try:
                if is_absent:
                    self._absent[entry.container_id] = trio.current_time() + _ABSENT
                    await self.runtime.reopen_container_log(entry.container_id)
                elif failed := await self._rotate(entry):
                    self._tell(entry, "; ".join(map(str, failed)))
                    return
            except RuntimeObjectNotFoundError:
                return  # it has just ended
            except (OSError, RuntimeCallError) as exc:
                self._tell(entry, str(exc))
            else:
                self._trouble.pop(entry.container_id, None)

    async def _rotate(self, entry: RunningLog) -> list[OSError]:
        """Rotate a log; return what failed of its older files."""
        path = Path(entry.path)
        failed = await self.offload(make_room, path, self.policy.max_files)
        now = datetime.datetime.fromtimestamp(self.clock.time())
        # Between the two the log has no name that anyone looks for. Cut off all the same, the
        # next round (or the next agent) finds no log and has it reopened.
        with trio.move_on_after(_FINISH, shield=True) as finishing:
            rotated = await self.offload(set_aside, path, now)
            failure: RuntimeCallError | None = None
            try:
                await self.runtime.reopen_container_log(entry.container_id)
            except RuntimeCallError as exc:
                failure = exc
            if failure is not None:
                await self.offload(put_back, rotated, path)
                raise failure
            self.meter.count("kubelet_trio_log_rotations_total")
            log.info("log.rotated", container=entry.container_id, to=str(rotated))
        if finishing.cancelled_caught:
            self._tell(entry, f"the runtime has not reopened the log within {_FINISH:g} s")
        return failed

    def _tell(self, entry: RunningLog, error: str) -> None:
        """Log a failure once, not at every round."""
        if self._trouble.get(entry.container_id) != error:
            self._trouble[entry.container_id] = error
            log.warning(
                "log.rotation_failed",
                container=entry.container_id,
                path=entry.path,
                error=error,
            )
