"""The child `shutdown`: holds the machine's shutdown up until the pods have ended.

From the moment that a shutdown is announced no pod is admitted and the node says that it is not
ready; then the pods end group by group, lowest priority first, each with what its group has left.
Their statuses leave before the lock is given back, for after that the network goes. What does
not end in time is left to the machine.
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
    get_logger,
    grace_period,
    node_ref,
    pod_key,
    rfc3339,
)
from kubelet_trio.shutdown.logind import InhibitLock, Logind, LogindError, LogindSession
from kubelet_trio.shutdown.plan import (
    ShutdownGroup,
    ShutdownPeriod,
    shutdown_groups,
    whole_period,
)

log = get_logger()

NOT_READY = "node is shutting down"
REJECTED = ("NodeShutdown", "Pod was rejected as the node is shutting down.")
_RECONNECT = 1.0
# How long logind may take to read what it was told to.
_RELOAD = 5.0
# How long the last statuses may take to leave.
_REPORT = 5.0
# How long the disk may take to keep when the shutdown was.
_RECORD = 5.0
STATE_FILE = "graceful_node_shutdown_state"


class ShutdownPods(Protocol):
    """What is asked of the pods."""

    def active(self) -> Sequence[tuple[PodUid, Pod]]:
        """Return the pods that have not ended."""
        ...

    def shut_down(self, uid: PodUid, grace_period: int) -> None:
        """Record that a pod ends with the node. Never blocks."""
        ...

    async def wait_ended(self, uid: PodUid) -> None:
        """Wait until nothing of a pod runs and its volumes are unmounted."""
        ...


@dataclass(slots=True)
class NodeShutdown:
    """Guards the node's shutdown. `is_shutting_down` is what others may know of it."""

    periods: tuple[ShutdownPeriod, ...]
    logind: Logind
    pods: ShutdownPods
    node_name: str
    root_dir: Path
    events: EventSink
    clock: WallClock
    offload: Offload
    announce: Callable[[], None] = lambda: None  # the node's readiness has changed
    reported: Callable[[], Awaitable[None]] | None = None  # waits until all statuses have left
    is_shutting_down: AsyncValue[bool] = field(default_factory=lambda: AsyncValue(False))
    began_at: float | None = None  # Unix seconds of the last shutdown, in this life or an earlier
    ended_at: float | None = None
    _lock: InhibitLock | None = None
    _writing: trio.Lock = field(default_factory=trio.Lock)  # one record after the other
    _trouble: str = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Guard until cancelled; while logind is away, try again each second."""
        task_status.started()
        self.began_at, self.ended_at = await self.offload(read_state, self.root_dir / STATE_FILE)
        try:
            while True:
                trouble: Exception | None = None
                try:
                    async with self.logind.open() as session:
                        await self._guard(session)
                except (LogindError, OSError) as exc:
                    trouble = exc
                self._tell(str(trouble))
                await trio.sleep(_RECONNECT)
        finally:
            self._release()

    def rejection(self) -> tuple[str, str] | None:
        """Return reason and message if no pod may come any more."""
        return REJECTED if self.is_shutting_down.value else None

    def problem(self) -> str | None:
        """Return why the node is not ready, if this is why."""
        return NOT_READY if self.is_shutting_down.value else None

    async def _guard(self, session: LogindSession) -> None:
        # An agent that starts into a shutdown is told nothing, and can hold it up no more.
        if not self.is_shutting_down.value and await session.is_preparing():
            await self._change(session, True)
        await self._have_time(session)
        if not self.is_shutting_down.value:
            await self._take(session)
        log.info("shutdown.guarded", seconds=whole_period(self.periods))
        self._trouble = ""
        while True:
            await self._change(session, await session.wait_change())

    async def _change(self, session: LogindSession, starts: bool) -> None:
        """Take over what logind says."""
        self._tell_change(starts)
        if starts and await self._shut_down_unless_called_off(session):
            return
        if starts:
            self._tell_change(False)
        await self._take(session)

    def _tell_change(self, starts: bool) -> None:
        log.warning("shutdown.announced" if starts else "shutdown.called_off")
        what = "event" if starts else "cancellation"
        text = f"Shutdown manager detected shutdown {what}"
        self.events.emit(node_ref(self.node_name), "Normal", "Shutdown", text)
        self.is_shutting_down.value = starts
        self.announce()

    async def _have_time(self, session: LogindSession) -> None:
        """See that a shutdown waits as long as the pods may take."""
        wanted, given = whole_period(self.periods), await session.inhibit_delay()
        if given >= wanted:
            return
        await session.override_delay(wanted)
        with trio.move_on_after(_RELOAD):
            while given < wanted:
                await trio.sleep(0.2)
                given = await session.inhibit_delay()
        if given < wanted:
            raise LogindError(
                "node shutdown manager was unable to update logind InhibitDelayMaxSec to "
                f"{wanted}s (ShutdownGracePeriod), current value of InhibitDelayMaxSec "
                f"({given:g}s) is less than requested ShutdownGracePeriod"
            )

    async def _take(self, session: LogindSession) -> None:
        lock = await session.inhibit()
        self._release()
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    async def _shut_down_unless_called_off(self, session: LogindSession) -> bool:
        """Shut down; return False as soon as that is called off, with who was told to ending.

        Raises `LogindError` once the pods have ended: a machine that goes down ends logind too.
        """
        began = self.clock.time()
        lost: LogindError | None = None
        called_off = False
        async with trio.open_nursery() as nursery:

            async def hear() -> None:
                nonlocal lost, called_off
                try:
                    while await session.wait_change():
                        pass  # said once more
                except LogindError as exc:
                    lost = exc
                    return
                called_off = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(hear)
            await self._shut_down(began)
            nursery.cancel_scope.cancel()
        if called_off:
            with trio.move_on_after(_RECORD):
                await self._remember(began, self.clock.time())
        elif lost is not None:
            raise lost
        return not called_off

    async def _shut_down(self, began: float) -> None:
        async with trio.open_nursery() as records:
            # Beside: a disk that hangs holds up neither the pods' end nor the machine's.
            records.start_soon(self._remember, began, None)
            try:
                for group in shutdown_groups(self.periods, self.pods.active()):
                    await self._end_group(group)
                if self.reported is not None:
                    with trio.move_on_after(_REPORT):
                        await self.reported()
                kept = trio.Event()
                records.start_soon(self._remember, began, self.clock.time(), kept)
                with trio.move_on_after(_RECORD):
                    await kept.wait()
            finally:
                self._release()
        log.warning("shutdown.pods_ended", seconds=round(self.clock.time() - began, 1))

    async def _end_group(self, group: ShutdownGroup) -> None:
        seconds = group.period.seconds
        for uid, pod in group.pods:
            log.info("shutdown.pod_ends", pod=str(pod_key(pod)), grace=seconds)
            self.pods.shut_down(uid, min(seconds, grace_period(pod)))
        with trio.move_on_after(seconds) as waited:
            for uid, _ in group.pods:
                await self.pods.wait_ended(uid)
        if waited.cancelled_caught:
            log.warning("shutdown.group_timed_out", priority=group.period.priority, seconds=seconds)

    async def _remember(
        self, began: float, ended: float | None, kept: trio.Event | None = None
    ) -> None:
        """Keep when it was, where the Go kubelet does; `kept` is set once that is done."""
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

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.error("shutdown.not_guarded", error=trouble)
        self._trouble = trouble


def read_state(path: Path) -> tuple[float | None, float | None]:
    """Return when the last shutdown began and ended; None where that is not known. Blocks."""
    try:
        state = json.loads(path.read_text())
        began, ended = state.get("startTime"), state.get("endTime")
        return _unix(began), _unix(ended)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None, None


def _unix(text: str | None) -> float | None:
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
