"""Where one pod's worker stands, as far as it would be lost otherwise.

These are times, and the last failure of a teardown. `facts` reads them, and all else that the
worker has anyway, when somebody asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from kubelet_trio.model import Backoff, EventType, WallClock, get_logger
from kubelet_trio.pods.steps.progress import Progress
from kubelet_trio.pods.steps.teardown import TEARDOWN_ERRORS
from kubelet_trio.pods.types import Hold, WaitingReason
from kubelet_trio.pods.worker.holds import RETRY_BASE, RETRY_CAP
from kubelet_trio.pods.worker.phases import Phase, PhaseEvent

log = get_logger()


@dataclass(slots=True)
class Standing:
    """What a worker notes of itself for `why`."""

    clock: WallClock
    progress: Progress = field(init=False)
    moved_at: float = field(init=False)  # Unix seconds of its last change of phase
    round_due: float | None = None  # trio time of its next round
    remains: str = ""  # why the runtime still has dead containers of it
    teardown: Hold | None = None  # the last failure of its teardown

    def __post_init__(self) -> None:
        self.progress = Progress(self.clock)
        self.moved_at = self.clock.time()

    def moved(self, before: Phase, after: Phase) -> None:
        """Note that the worker has come to a phase."""
        if after is before:
            return
        self.moved_at = self.clock.time()
        self.round_due, self.teardown = None, None
        self.progress.at("")

    def round_ended(self, due: float) -> None:
        """Note that the next round begins at `due` (Trio time), if nothing wakes the worker."""
        self.round_due = due

    def leave(self, trouble: str) -> None:
        """Note why dead containers are left; "": none are."""
        self.remains = trouble

    def teardown_failed(self, error: str, delay: float) -> None:
        """Note that a step of the teardown failed, and is repeated after `delay` seconds."""
        now = self.clock.time()
        since = self.teardown.since if self.teardown is not None else now
        self.teardown = Hold(now + delay, WaitingReason("FailedKillPod", error), since)
        self.progress.at("")


async def until_done(
    step: Callable[[], Awaitable[PhaseEvent]],
    standing: Standing,
    emit: Callable[[EventType, str, str], None],
) -> PhaseEvent:
    """Repeat a step of the teardown until it succeeds."""
    backoff, told = Backoff(RETRY_BASE / 2, RETRY_CAP), ""
    while True:
        try:
            return await step()
        except TEARDOWN_ERRORS as exc:
            delay = backoff.next_delay()
            standing.teardown_failed(str(exc), delay)
            if str(exc) != told:
                told = str(exc)
                log.warning("pod.teardown_failed", error=told)
            emit("Warning", "FailedKillPod", f"error killing pod: {exc}")
        await trio.sleep(delay)
