"""The child `shutdown`: delay the machine's shutdown until the pods have terminated.

From the announcement of a shutdown on, no pod is admitted and the node is not ready. The pods
terminate group by group, the lowest priority first, each within its group's period. Their statuses
are sent before the lock is released, because after that the network goes down. The machine's
shutdown kills pods that did not terminate in time.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import (
    EventSink,
    Offload,
    PodUid,
    WallClock,
    about_pod,
    get_logger,
    grace_period,
    node_ref,
    rfc3339,
)
from kubelet_trio.shutdown.logind import InhibitLock, Logind, LogindError, LogindSession
from kubelet_trio.shutdown.plan import ShutdownGroup, ShutdownPeriod, shutdown_groups, whole_period

log = get_logger()

_RECONNECT = 1.0  # seconds until the next attempt to reach logind: dbusReconnectPeriod
_RELOAD = 5.0  # seconds for logind to reload its configuration
_REPORT = 5.0  # seconds for the last statuses to be sent
_RECORD = 5.0  # seconds for the disk to take the record of the shutdown
# localStorageStateFile: the Go kubelet takes its metrics of the last shutdown from it.
STATE_FILE = "graceful_node_shutdown_state"


class ShutdownPods(Protocol):
    """The pods, as the shutdown needs them."""

    def active(self) -> Sequence[tuple[PodUid, Pod]]:
        """Return the pods that have not terminated."""
        ...

    def shut_down(self, uid: PodUid, grace_period: int) -> None:
        """Request the termination of a pod with the node. Never blocks."""
        ...

    async def wait_ended(self, uid: PodUid) -> None:
        """Wait until no container of a pod runs and its volumes are unmounted."""
        ...


@dataclass(slots=True)
class NodeShutdown:
    """The child `shutdown`. Other rooms read `is_shutting_down`."""

    periods: tuple[ShutdownPeriod, ...]
    logind: Logind
    pods: ShutdownPods
    node_name: str
    root_dir: Path
    events: EventSink
    clock: WallClock
    offload: Offload
    is_shutting_down: AsyncValue[bool]
    announce: Callable[[], None] = lambda: None  # called when the node's readiness changes
    reported: Callable[[], Awaitable[None]] | None = None  # waits until all statuses are sent
    began_at: float | None = None  # Unix seconds of the last shutdown, also of an earlier process
    ended_at: float | None = None
    _lock: InhibitLock | None = None
    _writing: trio.Lock = field(default_factory=trio.Lock)  # writes stay in order
    _last_error: str = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold a lock, and handle shutdowns, until cancelled; reconnect to logind every second."""
        task_status.started()
        self.began_at, self.ended_at = await self.offload(read_state, self.root_dir / STATE_FILE)
        try:
            while True:
                error = ""
                try:
                    async with self.logind.open() as session:
                        await self._guard(session)
                except (LogindError, OSError) as exc:
                    error = str(exc)
                self._log_error(error)
                await trio.sleep(_RECONNECT)
        finally:
            self._release()

    async def _guard(self, session: LogindSession) -> None:
        # logind does not signal an agent started during a shutdown, and it is too late to inhibit.
        if not self.is_shutting_down.value and await session.is_preparing():
            await self._handle_change(session, True)
        await self._ensure_delay(session)
        if not self.is_shutting_down.value:
            await self._inhibit(session)
        log.info("shutdown.guarded", seconds=whole_period(self.periods))
        self._last_error = ""
        while True:
            await self._handle_change(session, await session.wait_change())

    async def _handle_change(self, session: LogindSession, starts: bool) -> None:
        """Shut down, or after a cancellation admit pods again."""
        self._announce_change(starts)
        if starts and await self._shut_down_unless_cancelled(session):
            return
        if starts:
            self._announce_change(False)
        await self._inhibit(session)

    def _announce_change(self, starts: bool) -> None:
        log.warning("shutdown.announced" if starts else "shutdown.called_off")
        what = "event" if starts else "cancellation"
        text = f"Shutdown manager detected shutdown {what}"
        self.events.emit(node_ref(self.node_name), "Normal", "Shutdown", text)
        self.is_shutting_down.value = starts
        self.announce()

    async def _ensure_delay(self, session: LogindSession) -> None:
        """Raise logind's maximum delay to the pods' periods. Raises `LogindError`, OSError."""
        wanted, given = whole_period(self.periods), await session.inhibit_delay()
        if given >= wanted:
            return
        await session.override_delay(wanted)
        with trio.move_on_after(_RELOAD):
            # logind reloads asynchronously, and reports nothing when it has.
            while given < wanted:
                await trio.sleep(0.2)
                given = await session.inhibit_delay()
        if given < wanted:
            raise LogindError(
                "node shutdown manager was unable to update logind InhibitDelayMaxSec to "
                f"{wanted}s (ShutdownGracePeriod), current value of InhibitDelayMaxSec "
                f"({given:g}s) is less than requested ShutdownGracePeriod"
            )

    async def _inhibit(self, session: LogindSession) -> None:
        # The new lock first, so that there is no moment without one.
        lock = await session.inhibit()
        self._release()
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    async def _shut_down_unless_cancelled(self, session: LogindSession) -> bool:
        """Shut down; return False as soon as logind cancels it. Terminating pods still terminate.

        Raises `LogindError`, but only after the pods have terminated: the machine's shutdown also
        stops logind.
        """
        began = self.clock.time()
        lost: LogindError | None = None
        called_off = False
        async with trio.open_nursery() as nursery:

            async def watch_cancellation() -> None:
                nonlocal lost, called_off
                try:
                    while await session.wait_change():
                        pass  # the same announcement again
                except LogindError as exc:
                    lost = exc
                    return
                called_off = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch_cancellation)
            await self._shut_down(began)
            nursery.cancel_scope.cancel()
        if called_off:
            with trio.move_on_after(_RECORD):
                await self._record(began, self.clock.time())
        elif lost is not None:
            raise lost
        return not called_off

    async def _shut_down(self, began: float) -> None:
        async with trio.open_nursery() as records:
            # Concurrently: a hung disk must delay neither the pods' termination nor the machine.
            records.start_soon(self._record, began, None)
            try:
                for group in shutdown_groups(self.periods, self.pods.active()):
                    await self._end_group(group)
                # Before the lock is released: after that the network goes down.
                if self.reported is not None:
                    with trio.move_on_after(_REPORT):
                        await self.reported()
                kept = trio.Event()
                records.start_soon(self._record, began, self.clock.time(), kept)
                with trio.move_on_after(_RECORD):
                    await kept.wait()
            finally:
                self._release()
        log.warning("shutdown.pods_ended", seconds=round(self.clock.time() - began, 1))

    async def _end_group(self, group: ShutdownGroup) -> None:
        seconds = group.period.seconds
        for uid, pod in group.pods:
            log.info("shutdown.pod_ends", **about_pod(pod), grace=seconds)
            # A shorter grace period of the pod stays valid (killPods in pkg/kubelet/nodeshutdown).
            self.pods.shut_down(uid, min(seconds, grace_period(pod)))
        with trio.move_on_after(seconds) as waited:
            for uid, _ in group.pods:
                await self.pods.wait_ended(uid)
        if waited.cancelled_caught:
            log.warning("shutdown.group_timed_out", priority=group.period.priority, seconds=seconds)

    async def _record(
        self, began: float, ended: float | None, kept: trio.Event | None = None
    ) -> None:
        """Write start and end to the Go kubelet's state file; set `kept` after that."""
        self.began_at, self.ended_at = began, ended
        state = {"startTime": rfc3339(began), "endTime": rfc3339(ended) if ended else None}
        path = self.root_dir / STATE_FILE
        async with self._writing:
            try:
                await self.offload(path.write_text, json.dumps(state))
            except OSError as exc:
                log.error("shutdown.state_not_kept", path=str(path), error=str(exc))
        if kept is not None:
            kept.set()

    def _log_error(self, error: str) -> None:
        """Log an error once, not at every attempt."""
        if error != self._last_error:
            log.error("shutdown.not_guarded", error=error)
        self._last_error = error


def read_state(path: Path) -> tuple[float | None, float | None]:
    """Return start and end of the last shutdown, None if unknown. Blocks."""
    try:
        state = json.loads(path.read_text())
        began, ended = state.get("startTime"), state.get("endTime")
        return _unix(began), _unix(ended)
    # Any content: `json` raises RecursionError for deeply nested documents.
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None, None


def _unix(text: str | None) -> float | None:
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
