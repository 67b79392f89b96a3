"""Compares what is decided about pods outside of their workers, such as evictions, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from kubelet_trio.recorder import Entry, EvictionBody, Kind, RecordingError, read_body
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.recorded import Life


class Check(NamedTuple):
    """What is compared at a time."""

    at: float
    compare: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Recorded:
    at: float
    uid: str
    kind: str
    text: str
    is_made: bool = False


class Decisions:
    """The recorded decisions of one life, and those of the replayed agent."""

    def __init__(self, life: Life, journal: Journal, tolerance: float) -> None:
        """Read them. Raises `RecordingError`: one has another form."""
        self._life = life
        self._journal = journal
        self._tolerance = tolerance
        self._recorded = list(_recorded(life))

    def decide(self, uid: str, kind: str, text: str) -> None:
        """Take a decision that the replayed agent makes now."""
        now = trio.current_time()
        self._journal.note(uid, kind, text)
        for each in self._recorded:
            is_near = abs(each.at - now) <= self._tolerance
            if not each.is_made and (each.uid, each.kind) == (uid, kind) and is_near:
                each.is_made = True
                if each.text != text:
                    self._journal.diverge(each.at, uid, each.text, text)
                return
        # Just before the end of the recording the recorded agent may have been a little slower.
        if now <= self._life.end - self._tolerance:
            self._journal.diverge(now, uid, "nothing of the kind", text)

    def checks(self) -> Iterator[Check]:
        """Yield what finds the recorded decisions that the replayed agent does not make."""
        for each in self._recorded:
            yield Check(each.at + self._tolerance + 0.001, partial(self._check, each))

    def _check(self, recorded: _Recorded) -> None:
        if not recorded.is_made:
            late = trio.current_time() - recorded.at
            missed = f"nothing within {late:.1f} s"
            self._journal.diverge(recorded.at, recorded.uid, recorded.text, missed)


def eviction_words(signal: str, grace: int, message: str) -> str:
    """Return an eviction as one line."""
    return f"evict for {signal}, grace {grace} s: {message.strip()}"


def evictions_of(life: Life) -> Iterator[tuple[Entry, EvictionBody]]:
    """Yield the recorded evictions. Raises `RecordingError`: one has another form."""
    for entry in life.news:
        if entry.kind is Kind.DECISION:
            try:
                body = read_body(entry.body)
                if body.get("what") == "evict":
                    yield entry, msgspec.convert(body, EvictionBody)
            except (AttributeError, TypeError, ValueError) as exc:
                raise RecordingError(f"DECISION {entry.key}: {exc}") from exc


def _recorded(life: Life) -> Iterator[_Recorded]:
    for entry, told in evictions_of(life):
        text = eviction_words(told.signal, told.grace, told.message)
        yield _Recorded(entry.at, entry.key, "evict", text)
