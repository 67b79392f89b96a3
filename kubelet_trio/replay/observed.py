"""The runtime's objects as they were at any time, from the recorded readings. Pure.

A reading was recorded only where it differs from the one before, and when the recorded agent asked.
The replayed agent may ask a little earlier: right after a call that changes an object, or its exit,
the newest reading from before that is out of date, and the next one is the answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kubelet_trio.cri import RuntimeCallError, RuntimeUnavailableError, v1
from kubelet_trio.recorder import Kind, read_body
from kubelet_trio.replay.outages import Failing, Outages
from kubelet_trio.replay.recorded import LISTS, Life, Reading

# Seconds in which the recorded agent has asked after a change.
_SOON = 15.0
# Seconds by which the recorded agent may have asked later than the replayed one.
_ASKING = 0.5
_STATUS = {"list_containers": "container_status", "list_pod_sandboxes": "pod_sandbox_status"}


@dataclass(slots=True, eq=False)
class Versions:
    """The readings of one thing, oldest first."""

    readings: list[Reading] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, reading: Reading) -> None:
        self.readings.append(reading)
        self.times.append(reading.at)

    def at(
        self,
        now: float,
        touched: float = -math.inf,
        before: float = math.inf,
        horizon: float = math.inf,
    ) -> int | None:
        """Return the index of the reading that holds at a time; None if there is none.

        Args:
            now: the time.
            touched: when the thing has changed last, as far as is known.
            before: the place among all entries of the next call that changes it, and that the
                replayed agent has not made: later readings may show that.
            horizon: the latest reading that the recorded agent may have made at once.
        """
        end = bisect_left(self.readings, before, key=lambda reading: reading.order)
        last = min(bisect_right(self.times, now), end) - 1
        following = last + 1 if last + 1 < end else None
        if last < 0:
            return following
        if self.times[last] >= touched or following is None:
            return last
        # What was asked without an answer says nothing of the time before, but that it was asked.
        within = _ASKING if self.readings[following].had_no_answer else _SOON
        return following if self.times[following] <= min(now + within, horizon) else last

    def last(self, now: float) -> Reading | None:
        """Return the last reading until a time."""
        index = bisect_right(self.times, now) - 1
        return self.readings[index] if index >= 0 else None

    def next_at(self, now: float, before: float) -> float:
        """Return when the next reading comes; infinite if there is none before that place."""
        index = bisect_right(self.times, now)
        is_there = index < len(self.times) and self.readings[index].order < before
        return self.times[index] if is_there else math.inf


@dataclass(slots=True, eq=False)
class ObjectHistory:
    """A sandbox or a container: its entries in lists (None: gone) and its statuses."""

    listed: Versions = field(default_factory=Versions)
    statuses: Versions = field(default_factory=Versions)
    first: float = math.inf  # when it first appeared; minus infinity: it was there from the start


@dataclass(slots=True, eq=False)
class Observed:
    """All readings of a life, by what they are about."""

    outages: Outages
    containers: dict[str, ObjectHistory] = field(default_factory=dict)
    sandboxes: dict[str, ObjectHistory] = field(default_factory=dict)
    others: dict[tuple[str, str], Versions] = field(default_factory=dict)
    failures: dict[tuple[str, str], list[Failing]] = field(default_factory=dict)  # of lists
    first_lists: dict[str, float] = field(default_factory=dict)  # by method; not in all recordings
    pod_lists: dict[tuple[str, str], Versions] = field(default_factory=dict)  # that did not fail

    def objects(self, method: str) -> dict[str, ObjectHistory]:
        """Return the objects that a list, or a status, is about."""
        return self.containers if "container" in method else self.sandboxes

    def exit_of(self, container_id: str) -> float:
        """Return when a container's status has shown its end; infinite if it has not."""
        history = self.containers.get(container_id, ObjectHistory())
        exited = v1.ContainerState.CONTAINER_EXITED
        return next((r.at for r in history.statuses.readings if state_of(r.ok) == exited), math.inf)

    def recovered(self, versions: Versions, now: float) -> float:
        """Return since when a last failure is out of date: the runtime was away, and is back."""
        last = versions.last(now)
        if last is None or not isinstance(last.error, RuntimeUnavailableError):
            return -math.inf
        answered = self.outages.answered(now)
        return answered if answered > last.at else -math.inf

    def answered_later(self, versions: Versions, now: float) -> int | None:
        """Return the reading that answers a question of now although it came later; None: none.

        That is so where the runtime went away, or came back, without anybody else having seen it: a
        question is recorded only when it has been answered.
        """
        index = bisect_right(versions.times, now)
        if not 0 < index < len(versions.readings):
            return None
        last, following = versions.readings[index - 1 : index + 1]
        if following.had_no_answer:
            return index if self.outages.may_fail(now, following.at) else None
        is_back = last.had_no_answer and following.at <= now + _ASKING
        return index if is_back and self.outages.is_quiet(now, following.at) else None

    def failure(self, method: str, name: str, now: float, before: float) -> RuntimeCallError | None:
        """Return the error of a list at a time.

        Before a failure was recorded it is none if the replayed agent still has a call to make that
        came first: `before` is the place of that.
        """
        near = (
            each.error
            for key in {(method, name), (method, "")}
            for each in self.failures.get(key, ())
            if each.begins <= now <= each.ends and (now >= each.at or each.order < before)
        )
        return self.outages.at(now) or next(near, None)


def observe(life: Life) -> Observed:
    """Sort the readings of a life."""
    found = Observed(Outages(life))
    made = {c.ok for c in life.calls if c.method in ("create_container", "run_pod_sandbox")}
    for (method, name), readings in life.readings.items():
        objects = found.objects(method)
        if method in LISTS:
            _add_lists(found, method, name, readings, made)
            found.failures[method, name] = list(found.outages.failing(readings))
        elif method in _STATUS.values():
            for reading in readings:
                objects.setdefault(name, ObjectHistory()).statuses.add(reading)
        else:
            versions = found.others.setdefault((method, name), Versions())
            for reading in readings:
                versions.add(reading)
    for objects in (found.containers, found.sandboxes):
        for object_id, history in objects.items():
            history.listed = _sorted(history.listed.readings)
            # A status that nobody has listed: it was there before.
            was_there = history.first == math.inf and object_id not in made and _is_there(history)
            firsts = (*history.listed.readings[:1], *history.statuses.readings[:1])
            is_in_snapshot = any(reading.order < life.snapshot_end for reading in firsts)
            is_older = None if object_id in made else _is_older(life, history)
            if was_there or is_in_snapshot or is_older:
                history.first = -math.inf
            elif is_older is False:
                # Made by a call that had no answer: not there before it was seen.
                history.first = min(reading.at for reading in firsts)
    return found


def _add_lists(
    found: Observed, method: str, name: str, readings: list[Reading], made: set[Any]
) -> None:
    objects = found.objects(method)
    if name:
        found.pod_lists[method, name] = _sorted(r for r in readings if r.error is None)
    has_listed = False
    for reading in readings:
        if reading.error is not None:
            continue
        if reading.ok.get("first"):
            found.first_lists.setdefault(method, reading.at)
        for entry in reading.ok.get("entries") or ():
            history = objects.setdefault(entry["id"], ObjectHistory())
            history.listed.add(Reading(reading.at, entry, order=reading.order))
            if entry["id"] not in made:
                since = reading.at if has_listed else -math.inf
                history.first = min(history.first, since)
        for gone in reading.ok.get("gone") or ():
            objects.setdefault(gone, ObjectHistory()).listed.add(
                Reading(reading.at, None, order=reading.order)
            )
        # The list of one pod says nothing of the others.
        has_listed = has_listed or not name


def _sorted(readings: Iterable[Reading]) -> Versions:
    ordered = Versions()
    for reading in sorted(readings, key=lambda each: each.order):
        ordered.add(reading)
    return ordered


def _is_older(life: Life, history: ObjectHistory) -> bool | None:
    """Whether an object was made before its life, whichever of the wall clock's times it has.

    None: no reading says it.
    """
    readings = (*history.listed.readings, *history.statuses.readings)
    made, at = next(((m, r.at) for r in readings if (m := _created_at(r))), (0.0, 0.0))
    if not made:
        return None
    walls = [(life.start, life.wall)]
    jumps = (e for e in life.news if e.kind is Kind.CLOCK and e.at <= at)
    walls += [(entry.at, float(read_body(entry.body)["wall"])) for entry in jumps]
    return all(made < wall - (then - life.start) for then, wall in walls)


def _created_at(reading: Reading) -> float:
    """Return when an object was made, in Unix seconds; 0 if a reading does not say it."""
    content = reading.ok or {}
    return float(content.get("status", content).get("created_at") or 0) / 1e9


def _is_there(history: ObjectHistory) -> bool:
    return any(reading.error is None for reading in history.statuses.readings[:1])


def surprises(life: Life, observed: Observed) -> Iterator[float]:
    """Yield when the replayed agent is to list: when the recorded one has found a change so.

    That is at each relist that has shown one, whatever may explain it: soon after its start a
    sandbox may die by itself. And whenever a status has changed that neither a call nor an exit
    explains.
    """
    for method in LISTS:
        for reading in life.readings.get((method, ""), ()):
            if reading.error is None and reading.order > life.snapshot_end:
                yield reading.at
    causes: dict[str, list[tuple[float, float]]] = {}
    for call in life.calls:
        for object_id in (call.ok, *(call.request.get(k) for k in _IDS)):
            if isinstance(object_id, str):
                causes.setdefault(object_id, []).append((call.began, call.ended))
    for container, at in life.exits.items():
        causes.setdefault(container, []).append((at, at + _SOON))
    for objects in (observed.containers, observed.sandboxes):
        for object_id, history in objects.items():
            for versions in (history.listed, history.statuses):
                yield from _unexplained(versions, causes.get(object_id, ()))


_IDS = ("container_id", "pod_sandbox_id")


def _unexplained(versions: Versions, causes: Sequence[tuple[float, float]]) -> Iterator[float]:
    for before, reading in zip(versions.readings, versions.readings[1:], strict=False):
        at = reading.at
        is_explained = any(
            began <= at <= ended + _SOON and before.at <= ended for began, ended in causes
        )
        # Of an outage only the recorded agent knows when it had asked again.
        if before.had_no_answer or not is_explained:
            yield at


def state_of(content: Mapping[str, Any] | None) -> int:
    """Return the state of an object, from its entry in a list or its status."""
    inside = (content or {}).get("status", content)
    return int((inside or {}).get("state") or 0)


def with_state(entry: v1.PodSandbox | v1.Container, state: int) -> v1.PodSandbox | v1.Container:
    """Return an entry of a list in another state."""
    if isinstance(entry, v1.Container):
        return replace(entry, state=v1.ContainerState(state))
    return replace(entry, state=v1.PodSandboxState(state))
