"""Replay a recording: the whole agent in virtual time, on what the recorded one was told."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import trio
from trio.testing import MockClock

from kubelet_trio.model import without_chance
from kubelet_trio.recorder import RecordingError, read_recording
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.life import ReplayedLife
from kubelet_trio.replay.recorded import Life, Recording, read_lives
from kubelet_trio.replay.seams import MemoryCgroups, ReplayClock
from kubelet_trio.replay.types import Decision, Replay

TOLERANCE = 2.0  # s


def replay_recording(
    path: Path | str,
    *,
    pod: str = "",
    until: float | None = None,
    after: float | None = None,
    tolerance: float = TOLERANCE,
    on_decision: Callable[[Decision], None] = lambda _decision: None,
) -> Replay:
    """Replay a recording, and say where the agent decides otherwise than it did.

    It runs a Trio program of its own: call it outside of one.

    Args:
        path: of a packed recording, or of a segment of a ring.
        pod: `namespace/name`: only decisions about this pod are kept and compared.
        until: stop at this time (Unix seconds).
        after: stop so many seconds after the beginning.
        tolerance: seconds by which a decision may come earlier or later.
        on_decision: called with each decision as it is made.

    Raises:
        RecordingError: it cannot be read, or nothing in it says what the agent has found.
        OSError: likewise.
    """
    path = Path(path)
    recording = read_lives(read_recording(path), str(path))
    return replay(
        recording, pod=pod, until=until, after=after, tolerance=tolerance, on_decision=on_decision
    )


def replay(
    recording: Recording,
    *,
    pod: str = "",
    until: float | None = None,
    after: float | None = None,
    tolerance: float = TOLERANCE,
    on_decision: Callable[[Decision], None] = lambda _decision: None,
) -> Replay:
    """Replay what `read_lives` has read: see `replay_recording`."""
    if after is not None:
        until = recording.began + after
    # Jitters: a replay is the same each time.
    state = random.getstate()
    random.seed(0)
    try:
        with tempfile.TemporaryDirectory(prefix="kubelet-trio-replay-") as top:
            show = Show(Path(top), pod, until, tolerance, on_decision)
            return show.run(recording)
    finally:
        random.setstate(state)


class Show:
    """One replay: the lives of a recording, one after the other, on one clock and directory."""

    def __init__(
        self,
        top: Path,
        pod: str,
        until: float | None,
        tolerance: float,
        on_decision: Callable[[Decision], None],
    ) -> None:
        self._top = top
        self._pod = pod
        self._until = until
        self._tolerance = tolerance
        self._clock = ReplayClock()
        self._journal = Journal(self._clock.wall, pod=pod, on_decision=on_decision)
        self._cgroups = MemoryCgroups()
        self._notes: dict[str, None] = {}
        self._ended = 0.0  # virtual

    def run(self, recording: Recording) -> Replay:
        """Replay all lives, to the first divergence or the time to stop."""
        starts = 0
        for index, life in enumerate(recording.lives):
            self._clock.set(life.start, life.wall)
            if self._is_over(life):
                break
            starts += 1
            following = recording.lives[index + 1 :]
            self._live(life, following[0].start if following else math.inf)
        self._notes |= dict.fromkeys(_gaps(recording))
        return Replay(
            recording.name,
            recording.began,
            self._clock.wall(self._ended),
            starts,
            tuple(self._journal.decisions),
            self._journal.divergence,
            tuple(self._notes),
        )

    def _is_over(self, life: Life) -> bool:
        stops = self._until is not None and life.wall >= self._until
        return stops or self._journal.divergence is not None

    def _live(self, life: Life, next_start: float) -> None:
        """Replay one agent until the next one starts, or what it did has been compared."""
        end = min(life.end + self._tolerance + 0.1, next_start)
        if self._until is not None:
            end = min(end, life.start + self._until - life.wall)
        self._journal.open()
        replayed = ReplayedLife(
            life, self._top, self._clock, self._cgroups, self._journal, self._tolerance
        )
        # A clock of its own: an agent that is ended needs some time, which is none of the next.
        clock = MockClock(autojump_threshold=0)
        clock.jump(life.start)
        try:
            trio.run(_until, end, replayed.run, clock=clock)
        except BaseExceptionGroup as group:
            # An input that is refused when its time comes.
            refused, rest = group.split(RecordingError)
            if refused is None or rest is not None:
                raise
            raise _first(refused) from None
        divergence = self._journal.divergence
        self._ended = end if divergence is None else min(end, clock.current_time())
        self._notes |= dict.fromkeys(replayed.notes)


def _first(group: BaseExceptionGroup[RecordingError]) -> RecordingError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


async def _until(end: float, run: Callable[[], Awaitable[None]]) -> None:
    # No jitter makes the replayed agent later than the recorded one, whatever that one's was.
    without_chance()
    with trio.move_on_at(end):
        await run()


def _gaps(recording: Recording) -> Iterator[str]:
    lost = sum(life.lost for life in recording.lives)
    if lost:
        yield f"{lost} entries are missing in the recording: a divergence may come from that"
    if not recording.lives[0].is_whole:
        yield "the recording begins in the middle of an agent's life"
