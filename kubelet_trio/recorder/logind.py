"""The tap at logind: what it answers and announces, where it differs from the last."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from kubelet_trio.recorder.format import Kind
from kubelet_trio.recorder.recorder import Recorder
from kubelet_trio.recorder.tape import FORGET
from kubelet_trio.shutdown import InhibitLock, Logind, LogindError, LogindSession

T = TypeVar("T")


class RecordedLogind:
    """A `Logind` that notes."""

    def __init__(self, logind: Logind, recorder: Recorder) -> None:
        self._logind = logind
        self._note = recorder.note

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LogindSession]:
        """Open a session. Raises `LogindError`."""
        is_open = False
        try:
            async with self._logind.open() as session:
                is_open = True
                self._note(Kind.LOGIND, "open", {"ok": None})
                yield _RecordedSession(session, self._note)
        except LogindError as exc:
            if not is_open:
                self._note(Kind.LOGIND, "open", {"error": str(exc)})
            raise


class _RecordedSession:
    """A `LogindSession` that notes."""

    def __init__(self, session: LogindSession, note: Callable[[Kind, str, Any], bool]) -> None:
        self._session = session
        self._note = note

    async def _noted(self, name: str, call: Awaitable[T], is_told: bool = True) -> T:
        try:
            found = await call
        except (LogindError, OSError) as exc:
            self._note(Kind.LOGIND, name, {"error": str(exc)})
            raise
        self._note(Kind.LOGIND, name, {"ok": found if is_told else None})
        return found

    async def inhibit_delay(self) -> float:
        """Return the maximum delay in seconds. Raises `LogindError`."""
        return await self._noted("inhibit_delay", self._session.inhibit_delay())

    async def override_delay(self, seconds: float) -> None:
        """Raise the maximum delay. Raises `LogindError`, OSError."""
        await self._noted("override_delay", self._session.override_delay(seconds))

    async def inhibit(self) -> InhibitLock:
        """Take a delay lock. Raises `LogindError`."""
        return await self._noted("inhibit", self._session.inhibit(), is_told=False)

    async def is_preparing(self) -> bool:
        """Return whether a shutdown is in progress. Raises `LogindError`."""
        return await self._noted("is_preparing", self._session.is_preparing())

    async def wait_change(self) -> bool:
        """Wait until a shutdown is announced or cancelled. Raises `LogindError`."""
        try:
            starts = await self._session.wait_change()
        except LogindError as exc:
            self._note(Kind.LOGIND, "wait_change", {"error": str(exc)})
            # The next of the same kind is another one.
            self._note(Kind.LOGIND, "wait_change", FORGET)
            raise
        self._note(Kind.LOGIND, "wait_change", {"ok": starts})
        return starts
