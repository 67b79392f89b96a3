"""When the runtime of a recorded life was away, and when its lists failed. Pure.

A failure is recorded when the recorded agent has asked, and only if it differs from the last one.
The replayed agent may ask a little earlier or later. So a failure holds for some time before and
after; but never beyond an answer, which the runtime gives only while it is there.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.replay.recorded import NO_ANSWER, Life, Reading

# Seconds around a list that failed in which another one fails.
_FAILS_FOR = 0.6
# Seconds in which an agent that has had no answer asks for the runtime's status.
_ASKED_WITHIN = 15.0
_LATER = 0.001  # s between an answer and a failure


@dataclass(frozen=True, slots=True)
class Failing:
    """A time in which calls had an error, with both ends; `at` is the one that was recorded."""

    begins: float
    ends: float
    error: RuntimeCallError
    at: float
    order: int  # among all entries


class Outages:
    """The outages of one life."""

    def __init__(self, life: Life) -> None:
        every = [r for readings in life.readings.values() for r in readings]
        self._begun = sorted(r.at for r in every if r.had_no_answer)
        self._answers = sorted(_answers(life))
        self._away = list(self._find(life.readings.get(("status", ""), ())))

    def horizon(self, now: float) -> float:
        """Return until when the recorded agent could ask: the runtime was away then."""
        since = max(now - _FAILS_FOR, self.answered(now))
        index = bisect_left(self._begun, since)
        return self._begun[index] if index < len(self._begun) else math.inf

    def may_fail(self, now: float, at: float) -> bool:
        """Whether a call of now failed like the one that had no answer at a time."""
        return at - _FAILS_FOR <= now and self.answered(at - _LATER) <= now

    def is_quiet(self, now: float, until: float) -> bool:
        """Whether no call was without an answer from now until a time."""
        index = bisect_left(self._begun, now)
        return index == len(self._begun) or self._begun[index] > until

    def at(self, now: float) -> RuntimeCallError | None:
        """Return the error of every call while the runtime was away."""
        return next((f.error for f in self._away if f.begins <= now < f.ends), None)

    def failing(self, readings: Sequence[Reading]) -> Iterator[Failing]:
        """Yield when a list failed: a failure like the last one was not recorded, a success was."""
        for index, reading in enumerate(readings):
            if reading.error is not None:
                later = (r.at - _LATER for r in readings[index + 1 :])
                begins, ends = reading.at - _FAILS_FOR, next(later, reading.at + _FAILS_FOR)
                if reading.had_no_answer:
                    begins = max(begins, self.answered(reading.at - _LATER))
                yield Failing(begins, ends, reading.error, reading.at, reading.order)

    def answered(self, now: float) -> float:
        """Return the time of the last answer until now; minus infinity if there was none."""
        index = bisect_right(self._answers, now)
        return self._answers[index - 1] if index else -math.inf

    def _find(self, statuses: Sequence[Reading]) -> Iterator[Failing]:
        """Yield when the runtime was away, as the status tells: an agent asks for it all the time.

        It was from the first call without an answer before that, to the first answer after that.
        """
        for reading, following in zip(statuses, (*statuses[1:], None), strict=False):
            if reading.error is not None and reading.had_no_answer:
                answer = bisect_right(self._answers, reading.at)
                ends = [*self._answers[answer : answer + 1], math.inf]
                ended = min(ends if following is None else [following.at, *ends])
                index = bisect_left(self._begun, reading.at - _ASKED_WITHIN)
                alive = self.answered(reading.at)
                begun = (at for at in self._begun[index:] if at >= alive)
                began = next(begun, reading.at)
                yield Failing(began, ended, reading.error, reading.at, reading.order)


def _answers(life: Life) -> Iterator[float]:
    """Yield when the runtime has answered, as far as it was recorded."""
    for readings in life.readings.values():
        yield from (r.at for r in readings if not r.had_no_answer)
    for call in life.calls:
        if call.ended != math.inf and not isinstance(call.error, NO_ANSWER):
            yield call.ended
