"""A recording as a replay reads it: the lives of agents, and what each was told. Pure.

Times are virtual seconds: 0 is the beginning of the recording. Trio's clock begins anywhere with
each agent, so that the lives are placed one after the other by their wall times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubelet_trio.cri import (
    ImagePullError,
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UnsupportedCallError,
)
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_body
from kubelet_trio.replay.checks import FieldProblemError, check_entry, check_made, check_order

LISTS = ("list_containers", "list_pod_sandboxes")
NO_ANSWER = (RuntimeUnavailableError, RuntimeTimeoutError)
_MAKERS = ("create_container", "run_pod_sandbox")
_CANCELLED = "Cancelled"
# A replay has all of a recording in memory, which these are some GB of.
_MOST_ENTRIES = 1_000_000
_MOST_BYTES = 512 << 20
_ERRORS: Mapping[str, type[RuntimeCallError]] = {
    kind.__name__: kind
    for kind in (
        RuntimeCallError,
        RuntimeUnavailableError,
        RuntimeTimeoutError,
        RuntimeObjectNotFoundError,
        UnsupportedCallError,
    )
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer of a call from one time on: `ok`, or the error."""

    at: float
    ok: Any = None
    error: RuntimeCallError | None = None
    order: int = 0  # among all entries

    @property
    def had_no_answer(self) -> bool:
        """Whether the runtime was away."""
        return isinstance(self.error, NO_ANSWER)


@dataclass(slots=True, eq=False)
class RecordedCall:
    """A changing call as it was recorded. `ended` is infinite if it had no answer."""

    number: int
    method: str
    began: float
    request: Mapping[str, Any]
    order: int = 0  # among all entries
    ended: float = math.inf
    ok: Any = None
    error: RuntimeCallError | None = None
    made_at: float | None = None  # when the replayed agent has made it


@dataclass(slots=True, eq=False)
class RecordedVolumeCall:
    """A mount, an unmount or a driver's call. `ended` is infinite if it hung."""

    operation: str
    began: float
    args: list[Any]
    ended: float = math.inf
    ok: Any = None
    error: str = ""  # the class of its error
    errno: int = 0
    text: str = ""
    is_made: bool = False


@dataclass(slots=True, eq=False)
class Life:
    """One agent of a recording, from its start, or the first segment, to its last entry.

    Attributes:
        start: when it began.
        wall: Unix seconds then.
        facts: the body of START.
        is_whole: whether it is the agent's own start, not a later segment.
        snapshot: what there was (RECORD, WANTED, OBJECT, ...), by kind.
        news: what came later, in order: WANTED, SOURCES, OBJECT, PROBE, CLOCK, PLAN, STATUS.
        readings: the answers of reading calls by method and id, oldest first.
        exits: when processes ended, by container.
        lost: how many entries are missing.
        end: the time of its last entry.
    """

    start: float
    wall: float
    facts: Mapping[str, Any]
    is_whole: bool
    snapshot: list[Entry] = field(default_factory=list)
    news: list[Entry] = field(default_factory=list)
    calls: list[RecordedCall] = field(default_factory=list)
    volume_calls: list[RecordedVolumeCall] = field(default_factory=list)
    readings: dict[tuple[str, str], list[Reading]] = field(default_factory=dict)
    exits: dict[str, float] = field(default_factory=dict)
    lost: int = 0
    end: float = 0.0
    snapshot_end: int = 0  # the place of its SNAPSHOT among all entries


@dataclass(frozen=True, slots=True)
class Recording:
    """All of a recording; `lives` is not empty."""

    name: str
    lives: tuple[Life, ...]

    @property
    def began(self) -> float:
        """Unix seconds of its beginning."""
        return self.lives[0].wall


def read_lives(entries: Iterable[Entry], name: str) -> Recording:
    """Return the lives of a recording.

    Raises `RecordingError`: it is empty or too large, or an entry is none that an agent has
    written: which, and the field.
    """
    reader, size = _Reader(name), 0
    for index, entry in enumerate(entries):
        size += len(entry.key) + len(entry.body)
        if index >= _MOST_ENTRIES or size > _MOST_BYTES:
            raise RecordingError(
                f"{name}: entry {index + 1}: a replay takes {_MOST_ENTRIES} entries and "
                f"{_MOST_BYTES >> 20} MiB: save less with --since or --pod"
            )
        try:
            reader.take(entry)
        except RecordingError:
            raise
        except (KeyError, TypeError, ValueError) as exc:
            problem = exc if isinstance(exc, FieldProblemError) else f"{type(exc).__name__}: {exc}"
            text = f"{name}: entry {index + 1} ({entry.kind.name} {entry.key[:80]}): {problem}"
            raise RecordingError(text) from exc
    if not reader.lives:
        raise RecordingError(f"{name}: it has no START: nothing says what the agent found")
    return Recording(name, tuple(reader.lives))


class _Reader:
    """Sorts the entries into lives."""

    def __init__(self, name: str) -> None:
        self.lives: list[Life] = []
        self._order = 0  # of the current entry
        self._shift = 0.0  # from the recorded times to those of the replay
        self._is_snapshot = False
        self._is_skipped = False  # the snapshot of a later segment: known already
        self._calls: dict[int, RecordedCall] = {}
        self._volume_calls: dict[int, RecordedVolumeCall] = {}
        self._last = 0.0  # the time of the current life's last entry, as recorded

    def take(self, entry: Entry) -> None:
        self._order += 1
        if entry.kind is Kind.START:
            self._start(entry)
            return
        if not self.lives:
            return  # the rest of a segment whose beginning was overwritten
        if entry.kind is Kind.SNAPSHOT:
            if not self._is_skipped:
                self.lives[-1].snapshot_end = self._order
            self._is_snapshot = self._is_skipped = False
            return
        if self._is_skipped:
            return
        check_entry(entry)
        check_order(self._last, entry.at, self.lives[-1].start - self._shift)
        self._last = max(self._last, entry.at)
        life, at = self.lives[-1], entry.at + self._shift
        life.end = max(life.end, at)
        entry = Entry(at, entry.kind, entry.key, entry.body)
        if entry.kind in _ADDERS:
            _ADDERS[entry.kind](self, life, entry)
        elif self._is_snapshot:
            life.snapshot.append(entry)
        else:
            life.news.append(entry)

    def _start(self, entry: Entry) -> None:
        check_entry(entry)
        facts = read_body(entry.body)
        is_whole = facts["reason"] == "start"
        self._is_snapshot = True
        self._is_skipped = bool(self.lives) and not is_whole
        if self._is_skipped:
            return
        wall, at = float(facts["wall"]), 0.0
        if self.lives:
            first, last = self.lives[0], self.lives[-1]
            at = max(last.end, first.start + wall - first.wall)
        self._shift, self._last = at - entry.at, entry.at
        self._calls, self._volume_calls = {}, {}
        self.lives.append(Life(at, wall, facts, is_whole, end=at))

    def add_call(self, life: Life, entry: Entry) -> None:
        body = read_body(entry.body)
        call = RecordedCall(body["call"], entry.key, entry.at, body["request"], self._order)
        self._calls[call.number] = call
        life.calls.append(call)

    def add_answer(self, life: Life, entry: Entry) -> None:
        call = self._calls.get(int(entry.key))
        if call is not None:
            body = read_body(entry.body)
            if body.get("error") == _CANCELLED:
                return  # by its caller: until then it had no answer
            call.ended, call.ok = entry.at, body.get("ok")
            call.error = error_of(call.method, body)
            if call.error is None and call.method in _MAKERS:
                check_made(call.ok)

    def add_reading(self, life: Life, entry: Entry) -> None:
        method, _, name = entry.key.partition(":")
        body = read_body(entry.body)
        error = error_of(method, body)
        ok = body.get("ok") if error is None else None  # beside an error it was not checked
        reading = Reading(entry.at, ok, error, self._order)
        life.readings.setdefault((method, name), []).append(reading)

    def add_exit(self, life: Life, entry: Entry) -> None:
        life.exits.setdefault(entry.key, entry.at)

    def add_volume(self, life: Life, entry: Entry) -> None:
        body = read_body(entry.body)
        if "args" in body:
            began = RecordedVolumeCall(entry.key, entry.at, list(body["args"]))
            self._volume_calls[body["call"]] = began
            life.volume_calls.append(began)
        elif (call := self._volume_calls.get(body["call"])) is not None:
            call.ended, call.ok = entry.at, body.get("ok")
            call.error, call.text = body.get("error", ""), body.get("text", "")
            call.errno = int(body.get("errno") or 0)

    def add_gap(self, life: Life, entry: Entry) -> None:
        life.lost += int(read_body(entry.body).get("lost") or 1)


_ADDERS = {
    Kind.CALL: _Reader.add_call,
    Kind.ANSWER: _Reader.add_answer,
    Kind.READ: _Reader.add_reading,
    Kind.EXIT: _Reader.add_exit,
    Kind.VOLUME: _Reader.add_volume,
    Kind.GAP: _Reader.add_gap,
}


def error_of(method: str, body: Mapping[str, Any]) -> RuntimeCallError | None:
    """Return the error that an answer holds, None if it is none."""
    kind = body.get("error")
    if not kind:
        return None
    call = method.title().replace("_", "")  # as CRI names it
    text, code = str(body.get("text", "")), str(body.get("code") or "")
    if kind == ImagePullError.__name__:
        return ImagePullError(call, text, str(body.get("reason") or "ErrImagePull"), code=code)
    return _ERRORS.get(kind, RuntimeCallError)(call, text, code=code)
