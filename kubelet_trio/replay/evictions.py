"""What the replayed eviction manager observes: the recorded looks, each at its time.

A recorded agent notes a look where it may decide something. So the replayed one looks when the
recorded one did, and after each eviction, as always; it has no period of its own. A calm time has
one look, whatever its length.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent, AgentSettings
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import Bell, PodUid
from kubelet_trio.pressure import (
    EvictionInputs,
    FileSystems,
    Layout,
    NoEvictionNotes,
    Observations,
    PodUsage,
    is_own_limit,
)
from kubelet_trio.recorder import (
    ALL_PODS,
    OVER_LIMITS,
    Entry,
    Kind,
    RecordingError,
    SignalsBody,
    UsageBody,
    read_body,
)
from kubelet_trio.replay.decisions import Decisions, eviction_words, evictions_of
from kubelet_trio.replay.recorded import Life

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Cue(Generic[T]):
    """What was observed. `at`: when the recorded agent began to look; `ended`: when it had."""

    at: float
    ended: float
    content: T
    is_taken: bool = False


class Cues(Generic[T]):
    """What was observed of one thing, oldest first: each is the answer of one look."""

    def __init__(self, cues: Sequence[Cue[T]], tolerance: float) -> None:
        self.all = sorted(cues, key=lambda cue: cue.at)
        self._tolerance = tolerance

    def near(self, now: float) -> Cue[T] | None:
        """Return the oldest within the tolerance that no look has taken; it is taken then."""
        first = bisect_left(self.all, now - self._tolerance, key=lambda cue: cue.at)
        end = bisect_right(self.all, now + self._tolerance, key=lambda cue: cue.at)
        for cue in self.all[first:end]:
            if not cue.is_taken:
                cue.is_taken = True
                return cue
        return None

    def last(self, now: float) -> Cue[T] | None:
        """Return the newest of a time; it is taken then."""
        index = bisect_right(self.all, now, key=lambda cue: cue.at) - 1
        if index < 0:
            return None
        self.all[index].is_taken = True
        return self.all[index]

    async def ring(self, bell: Bell) -> None:
        """Ring at the time of each that no look has taken by then."""
        for cue in self.all:
            await trio.sleep_until(cue.at)
            if not cue.is_taken:
                bell.ring()


class ReplayEvictions(NoEvictionNotes):
    """The eviction manager's side of one recorded life."""

    def __init__(self, life: Life, decisions: Decisions, tolerance: float) -> None:
        """Read what was observed. Raises `RecordingError`: an entry has another form."""
        signals, pods, limits = _read(life)
        self._decisions = decisions
        self._evicted = list(evictions_of(life))
        # Of chosen pods: without the others nobody can say which one goes.
        self._is_partial = bool(life.facts.get("only"))
        self._signals = Cues(signals, tolerance)
        self._pods = Cues(pods, tolerance)
        self._limits = Cues(limits, tolerance)

    def inputs(self) -> EvictionInputs:
        """Return what the manager observes. It looks when it is told to."""
        return EvictionInputs(self, self, self._layout, self, period=math.inf)

    def notes(self, settings: AgentSettings) -> Iterator[str]:
        """Yield what the replay cannot know."""
        if self._is_partial and self._evicted:
            yield "recorded evictions are repeated, not decided: other pods are left out"
        elif not settings.eviction.is_off and not self._signals.all:
            yield "the node's signals are not in the recording: no pod is evicted for pressure"

    async def cue(self, agent: Agent) -> None:
        """Let the manager look when the recorded one did."""
        manager = agent.parts.upkeep.eviction
        if self._is_partial:
            for entry, told in self._evicted:
                await trio.sleep_until(entry.at)
                uid = PodUid(entry.key)
                self.evicted(uid, told.signal, told.grace, told.message)
                over = is_own_limit(told.signal)
                manager.pods.evict(uid, told.grace, told.message, is_over_limit=over)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._signals.ring, manager.look_soon)
            nursery.start_soon(self._limits.ring, manager.check_limits_soon)

    # Signals

    def observe(self, places: FileSystems) -> Observations:
        """Return the signals of a look. Raises TimeoutError."""
        if self._is_partial:
            return {}
        now = trio.current_time()
        # Without file systems it is the second attempt of one look.
        cue = (self._signals.near(now) if places.node else None) or self._signals.last(now)
        if cue is None:
            return {}
        if cue.content.error:
            raise TimeoutError(cue.content.error)
        return cue.content.observed

    def _layout(self, places: FileSystems) -> Layout:
        known = [cue.content.layout for cue in self._signals.all if not cue.content.error]
        return known[-1] if known else Layout()

    # PodUsages

    async def read(
        self, pods: Iterable[tuple[PodUid, Pod]], *, all_pods: bool, disk: bool
    ) -> dict[PodUid, PodUsage]:
        """Return the usage that was read then. Raises `RuntimeCallError`."""
        now = trio.current_time()
        cue = (self._pods if all_pods else self._limits).near(now)
        if cue is None:
            await trio.lowlevel.checkpoint()
            # Where nobody was evicted: of the pods' own limits nothing was noted.
            cue = self._pods.last(now) if all_pods else None
            return dict(cue.content.pods) if cue is not None else {}
        await trio.sleep_until(cue.ended)
        if cue.content.error:
            raise RuntimeCallError("ListContainerStats", cue.content.error)
        return dict(cue.content.pods)

    # EvictionNotes: what was observed is what is replayed

    def evicted(self, uid: PodUid, signal: str, grace: int, message: str) -> None:
        self._decisions.decide(uid, "evict", eviction_words(signal, grace, message))


def _read(
    life: Life,
) -> tuple[list[Cue[SignalsBody]], list[Cue[UsageBody]], list[Cue[UsageBody]]]:
    signals, usages = [], {ALL_PODS: list[Cue[UsageBody]](), OVER_LIMITS: list[Cue[UsageBody]]()}
    for entry in (*life.snapshot, *life.news):
        if entry.kind is Kind.SIGNALS:
            signals.append(Cue(entry.at, entry.at, _body(entry, SignalsBody)))
        elif entry.kind is Kind.USAGE and entry.key in usages:
            told = _body(entry, UsageBody)
            usages[entry.key].append(Cue(entry.at - told.seconds, entry.at, told))
    return signals, usages[ALL_PODS], usages[OVER_LIMITS]


def _body(entry: Entry, kind: type[T]) -> T:
    try:
        return msgspec.convert(read_body(entry.body), kind)
    except ValueError as exc:
        raise RecordingError(f"{entry.kind.name} {entry.key}: {exc}") from exc
