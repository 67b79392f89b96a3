"""Rotate the logs of running containers: the child `logs` of `gc`.

Every `interval` one call reads the sizes of all live logs. A log of `max_size` or more is renamed,
and the runtime reopens it as a new file; older files are compressed and the oldest removed, so that
at most `max_files` of an instance exist. No state is kept: file names show what an interrupted
rotation left to do. At worst a log was renamed and not reopened; the container then writes to the
rotated file until the next round finds no live log and reopens it, and no line is lost.

The log of an exited container is not rotated: its new, empty log would be of no use.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from kubelet_trio.cri import Runtime, RuntimeCallError, RuntimeObjectNotFoundError
from kubelet_trio.gc.log_files import log_sizes, make_room, put_back, set_aside
from kubelet_trio.model import (
    ContainerId,
    Meter,
    Offload,
    Phase,
    WallClock,
    get_logger,
    next_due,
    pod_fields,
)

log = get_logger()

_FINISH = 5.0  # seconds that rename and reopen may take after a cancellation
_ABSENT = 300.0  # seconds until the next attempt to reopen a log that still does not exist


@dataclass(frozen=True, slots=True)
class LogRotationPolicy:
    """When logs are rotated and what is kept: the containerLog* fields of the configuration."""

    max_size: int = 10 << 20  # bytes; less than 0: logs are not rotated
    max_files: int = 5  # of one instance, the live one included; at least 2
    max_workers: int = 1  # rotations at a time
    interval: float = 10.0  # seconds between rounds


@dataclass(frozen=True, slots=True)
class RunningLog:
    """A running container, and its live log."""

    container_id: ContainerId
    path: str  # absolute, on the host
    container: str = ""
    pod: tuple[str, str, str] = ("", "", "")  # namespace, name and UID


@dataclass(slots=True)
class LogRotation:
    """Rotates the logs of running containers."""

    runtime: Runtime
    running: Callable[[], Iterable[RunningLog]]
    policy: LogRotationPolicy
    clock: WallClock
    offload: Offload
    meter: Meter = field(default_factory=Meter)
    _absent: dict[ContainerId, float] = field(default_factory=dict)  # time of the next request
    _last_errors: dict[ContainerId, str] = field(default_factory=dict)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Rotate until cancelled; ready at once."""
        task_status.started()
        while True:
            await trio.sleep_until(next_due(self.policy.interval, Phase.SCAN))
            await self.sweep()

    async def sweep(self) -> None:
        """Run one round: rotate the logs that are large enough."""
        logs = {entry.container_id: entry for entry in self.running() if entry.path}
        self._last_errors = {i: t for i, t in self._last_errors.items() if i in logs}
        if not logs:
            self._absent = {}
            return  # without a thread
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
        """Return the sizes of the logs by path, None for a missing one; log other errors."""
        logs = list(logs)
        found = await self.offload(log_sizes, [entry.path for entry in logs])
        sizes: dict[str, int | None] = {}
        for entry in logs:
            size = found[entry.path]
            if isinstance(size, OSError):
                self._log_error(entry, str(size))
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
                    # Upstream's processContainer repeats this every round, even if no log appears.
                    self._absent[entry.container_id] = trio.current_time() + _ABSENT
                    await self.runtime.reopen_container_log(entry.container_id)
                elif failed := await self._rotate(entry):
                    self._log_error(entry, "; ".join(map(str, failed)))
                    return
            except RuntimeObjectNotFoundError:
                return  # the container has just exited
            except (OSError, RuntimeCallError) as exc:
                self._log_error(entry, str(exc))
            else:
                self._last_errors.pop(entry.container_id, None)

    async def _rotate(self, entry: RunningLog) -> list[OSError]:
        """Rotate a log; return the errors of its older files."""
        path = Path(entry.path)
        failed = await self.offload(make_room, path, self.policy.max_files)
        now = datetime.datetime.fromtimestamp(self.clock.time())  # local time, as upstream
        # Shielded: between rename and reopen readers find no live log. If the deadline passes, the
        # next round (or the next agent) finds none either, and reopens it.
        with trio.move_on_after(_FINISH, shield=True) as finishing:
            rotated = await self.offload(set_aside, path, now)
            # Handled after the `except` block: a cancellation there would replace it (ASYNC120).
            failure: RuntimeCallError | None = None
            try:
                await self.runtime.reopen_container_log(entry.container_id)
            except RuntimeCallError as exc:
                failure = exc
            if failure is not None:
                await self.offload(put_back, rotated, path)
                raise failure
            self.meter.count("kubelet_trio_log_rotations_total")
            log.info(
                "log.rotated",
                **pod_fields(*entry.pod),
                containerName=entry.container,
                containerID=entry.container_id,
                to=str(rotated),
            )
        if finishing.cancelled_caught:
            self._log_error(entry, f"the runtime did not reopen the log within {_FINISH:g} s")
        return failed

    def _log_error(self, entry: RunningLog, error: str) -> None:
        """Log an error once, not in every round."""
        if self._last_errors.get(entry.container_id) != error:
            self._last_errors[entry.container_id] = error
            log.warning(
                "log.rotation_failed",
                **pod_fields(*entry.pod),
                containerName=entry.container,
                containerID=entry.container_id,
                path=entry.path,
                error=error,
            )
