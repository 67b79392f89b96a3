"""A trio run that stands still between steps, under a clock that only we move.

Trio runs in guest mode, and this is its host: it ticks trio while a step is being taken,
and not at all in between. So a synchronous caller (a hypothesis state machine) can look at
everything between two steps, as if the world had stopped, and take the next.

The task that takes the steps stays runnable while it has none to take. So a tick never
finds trio idle with nothing to do, and never hands the waiting to a thread: all of a run
happens in the thread of its host, in an order that depends on the scheduler's seed alone.
During a step the clock jumps whenever every task is blocked. Then time passes exactly as far
as the step sleeps, and everything that is due on the way happens on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import outcome
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

T = TypeVar("T")

# Far beyond any honest step; only a livelock (tasks that wake each other for ever) ticks on.
TICKS_PER_STEP = 100_000


class LivelockError(AssertionError):
    """A step did not end: tasks keep running and virtual time does not move."""


class Stepper:
    """One trio run, taken step by step. A context manager: leaving it ends the run.

    `nursery` is for tasks that live longer than one step.
    """

    def __init__(self) -> None:
        self.clock = MockClock()
        self._ticks: deque[Callable[[], object]] = deque()
        self._step: Callable[[], Awaitable[object]] | None = None
        self._taken: outcome.Outcome[object] | None = None
        self._ended: outcome.Outcome[None] | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def nursery(self) -> trio.Nursery:
        assert self._nursery is not None
        return self._nursery

    def __enter__(self) -> Stepper:
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._ticks.append,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
            restrict_keyboard_interrupt_to_checkpoints=True,
            clock=self.clock,
            strict_exception_groups=True,
        )
        self._tick_until(lambda: self._nursery is not None)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._ended is None:
            self.nursery.cancel_scope.cancel()
            self._tick_until(lambda: self._ended is not None)
        if exc_info[0] is None:
            self._raise_if_crashed()

    def take(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run one step inside trio to its end and return what it returns, or raise.

        What the step starts in `nursery` runs on in later steps.
        """
        self._taken, self._step = None, step
        self._tick_until(lambda: self._taken is not None or self._ended is not None)
        self._raise_if_crashed()
        assert self._taken is not None
        return cast("T", self._taken.unwrap())

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Call a plain function inside trio, as a step that takes no time."""

        async def step() -> T:
            return function(*args)

        return self.take(step)

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass, and everything happen that is due."""

        async def step() -> None:
            await trio.sleep(seconds)
            await wait_all_tasks_blocked()

        self.take(step)

    def settle(self) -> None:
        """Let everything happen that is due now."""
        self.take(wait_all_tasks_blocked)

    def now(self) -> float:
        """Return trio's time, from outside the run."""
        return self.clock.current_time()

    def _tick_until(self, reached: Callable[[], bool]) -> None:
        for _ in range(TICKS_PER_STEP):
            if reached():
                return
            self._ticks.popleft()()
        raise LivelockError(f"no end in sight at t={self.now():g}")

    def _raise_if_crashed(self) -> None:
        if isinstance(self._ended, outcome.Error):
            raise self._ended.error

    def _done(self, how: outcome.Outcome[None]) -> None:
        self._ended = how

    async def _main(self) -> None:
        async with trio.open_nursery() as self._nursery:
            while True:
                while self._step is None:  # the host sets it, no task
                    await trio.lowlevel.checkpoint()
                step, self._step = self._step, None
                self.clock.autojump_threshold = 0
                self._taken = await _outcome_of(step)
                self.clock.autojump_threshold = float("inf")


async def _outcome_of(step: Callable[[], Awaitable[object]]) -> outcome.Outcome[object]:
    """Capture how a step ends; but if the whole run is being ended, end with it."""
    try:
        return outcome.Value(await step())
    except trio.Cancelled:
        raise
    except BaseException as exc:  # noqa: BLE001  # the step's caller gets it, whatever it is
        return outcome.Error(exc)
