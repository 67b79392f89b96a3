"""Decide whether to restart a child, when, and with which siblings. Pure: times are parameters.

Budgets multiply down the tree: a child with 10 restarts under a supervisor with 10 makes 100 before
the process ends. So budgets near the root are small (3).
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from kubelet_trio.model import backoff_delay


class Restart(enum.Enum):
    """Which ends of a child lead to a restart."""

    PERMANENT = "permanent"  # all; a return is a failure too
    TRANSIENT = "transient"  # failures; after a return it is done
    TEMPORARY = "temporary"  # none


class Strategy(enum.Enum):
    """Which siblings are restarted with a child that failed."""

    ONE_FOR_ONE = "one_for_one"  # none: they are unrelated
    REST_FOR_ONE = "rest_for_one"  # those declared after it: they depend on it
    ONE_FOR_ALL = "one_for_all"  # all: they share state that is now broken


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often a child may be restarted, and how long each restart waits, in seconds.

    A `Supervisor` gives up at more than `limit` restarts of a child `within` seconds; never, if
    `limit` is None. A `DynamicSupervisor` never gives up: a child's delay doubles from `base` to
    `cap`, and is `base` again after a life longer than `within`.
    """

    limit: int | None = 5
    within: float = 60.0
    base: float = 0.5
    cap: float = 30.0

    def budget(self) -> RestartBudget:
        """Return an unused budget under this policy."""
        return RestartBudget(limit=self.limit, window=self.within, base=self.base, cap=self.cap)

    def backoff(self) -> CrashBackoff:
        """Return a new back-off under this policy, for a child that is always restarted."""
        return CrashBackoff(base=self.base, cap=self.cap, reset_after=self.within)


DEFAULT_POLICY = RestartPolicy()


@dataclass(slots=True)
class RestartBudget:
    """The restarts of one child: at most `limit` in any `window` seconds, if any."""

    limit: int | None = 5
    window: float = 60.0
    base: float = 0.5
    cap: float = 30.0
    _past: deque[float] = field(default_factory=deque)

    def next_delay(self, now: float) -> float | None:
        """Return how long to wait before a restart, or None to give up."""
        while self._past and now - self._past[0] > self.window:
            self._past.popleft()
        # Within the window only: a child that fails once a day never uses up its budget.
        if self.limit is not None and len(self._past) >= self.limit:
            return None
        self._past.append(now)
        return backoff_delay(self.base, self.cap, len(self._past))


@dataclass(slots=True)
class CrashBackoff:
    """The delays of a child that is always restarted.

    Not a `RestartBudget` without limit: once the delays are longer than its sliding window, old
    crashes leave the window, and the delays of a child that crashes at once would shrink again.
    """

    base: float = 0.5
    cap: float = 30.0
    reset_after: float = 60.0
    _crashes: int = 0

    def next_delay(self, lived: float) -> float:
        """Return how long to wait after a life of `lived` seconds that ended in a crash."""
        if lived > self.reset_after:
            self._crashes = 0
        self._crashes += 1
        return backoff_delay(self.base, self.cap, self._crashes)


def restart_group(strategy: Strategy, failed: int, count: int) -> range:
    """Return the indices, in start order, of the children that restart with `failed`."""
    match strategy:
        case Strategy.ONE_FOR_ONE:
            return range(failed, failed + 1)
        case Strategy.REST_FOR_ONE:
            return range(failed, count)
        case Strategy.ONE_FOR_ALL:
            return range(count)
