"""logind in a replay: it answers and announces what it did, each at its time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from kubelet_trio.agent import AgentSettings
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_body
from kubelet_trio.replay.recorded import Life
from kubelet_trio.shutdown import LogindError, LogindSession

_SOON = 2.0  # s by which the replayed agent may ask earlier
_TYPES: dict[str, tuple[type, ...]] = {
    "inhibit_delay": (int, float),
    "is_preparing": (bool,),
    "wait_change": (bool,),
}


@dataclass(slots=True)
class _Answers:
    """The answers of one method, oldest first."""

    times: list[float] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def at(self, now: float, default: Any) -> Any:
        """Return the answer of a time. Raises `LogindError`."""
        index = bisect_right(self.times, now) - 1
        if index < 0 and self.times and self.times[0] <= now + _SOON:
            index = 0
        return _result(self.bodies[index]) if index >= 0 else default


class ReplayLogind:
    """A `Logind` of one recorded life."""

    def __init__(self, life: Life) -> None:
        """Read what it told. Raises `RecordingError`: an entry has another form."""
        self._answers: dict[str, _Answers] = {}
        self._is_partial = bool(life.facts.get("only"))
        self._was_preparing = False
        for entry in (*life.snapshot, *life.news):
            if entry.kind is not Kind.LOGIND:
                continue
            body = _body(entry)
            is_change = entry.key == "wait_change"
            if is_change and entry.at <= life.start:  # before the first segment that is left
                self._was_preparing = bool(body.get("ok"))
                continue
            answers = self._answers.setdefault(entry.key, _Answers())
            answers.times.append(entry.at)
            answers.bodies.append(body)
        self._next_change = 0

    def notes(self, settings: AgentSettings) -> Iterator[str]:
        """Yield what the replay cannot know."""
        if self._is_partial and self._answers.get("wait_change"):
            yield "other pods are left out: in a shutdown a pod may end earlier than it did"
        if settings.shutdown and not self._answers:
            yield "logind is not in the recording: the node is not shut down"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LogindSession]:
        """Open a session. Raises `LogindError`."""
        await self._answer("open", None)
        yield self

    async def _answer(self, method: str, default: Any) -> Any:
        """Return the answer of now. Raises `LogindError`."""
        await trio.lowlevel.checkpoint()
        return self._answers.get(method, _Answers()).at(trio.current_time(), default)

    async def inhibit_delay(self) -> float:
        """Return the maximum delay in seconds. Raises `LogindError`."""
        return float(await self._answer("inhibit_delay", math.inf))

    async def override_delay(self, seconds: float) -> None:
        """Raise the maximum delay. Raises `LogindError`."""
        await self._answer("override_delay", None)

    async def inhibit(self) -> ReplayLock:
        """Take a delay lock. Raises `LogindError`."""
        await self._answer("inhibit", None)
        return ReplayLock()

    async def is_preparing(self) -> bool:
        """Return whether a shutdown is in progress. Raises `LogindError`."""
        # The older answer of a snapshot was before that.
        was, self._was_preparing = self._was_preparing, False
        return bool(await self._answer("is_preparing", False)) or was

    async def wait_change(self) -> bool:
        """Wait for the next announcement. Raises `LogindError`."""
        changes = self._answers.get("wait_change", _Answers())
        if self._next_change >= len(changes.times):
            await trio.sleep_forever()
        await trio.sleep_until(changes.times[self._next_change])
        self._next_change += 1
        return bool(_result(changes.bodies[self._next_change - 1]))


class ReplayLock:
    """A lock that holds nothing."""

    def release(self) -> None:
        pass


def _result(body: dict[str, Any]) -> Any:
    if "error" in body:
        raise LogindError(body["error"])
    return body.get("ok")


def _body(entry: Entry) -> dict[str, Any]:
    try:
        body = read_body(entry.body)
    except ValueError as exc:
        raise RecordingError(f"LOGIND {entry.key}: {exc}") from exc
    if not isinstance(body, dict) or not isinstance(body.get("error", ""), str):
        raise RecordingError(f"LOGIND {entry.key}: it is no answer")
    kinds = _TYPES.get(entry.key)
    if kinds and "error" not in body and not isinstance(body.get("ok"), kinds):
        raise RecordingError(f"LOGIND {entry.key}: {body.get('ok')!r} is no answer")
    return body
