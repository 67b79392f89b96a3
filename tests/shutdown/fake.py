"""A logind in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from kubelet_trio.shutdown import InhibitLock, LogindError, LogindSession


@dataclass(slots=True)
class FakeLock:
    """A lock that knows whether it is held."""

    is_held: bool = True

    def release(self) -> None:
        self.is_held = False


@dataclass(slots=True)
class FakeLogind:
    """One logind; `announce` tells its sessions of a shutdown."""

    delay: float = 600.0
    is_away: bool = False
    is_preparing: bool = False  # a shutdown is under way
    obeys: bool = True  # whether it waits as long as it is told to
    locks: list[FakeLock] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    _sessions: list[_Session] = field(default_factory=list)

    @property
    def is_held_up(self) -> bool:
        """Whether a shutdown waits."""
        return any(lock.is_held for lock in self.locks)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LogindSession]:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise LogindError("no connection to D-Bus")
        session = _Session(self)
        self._sessions.append(session)
        try:
            yield session
        finally:
            self._sessions.remove(session)

    def announce(self, wanted: bool) -> None:
        for session in self._sessions:
            session.send.send_nowait(wanted)

    def go_away(self) -> None:
        self.is_away = True
        for session in self._sessions:
            session.send.close()


class _Session:
    def __init__(self, logind: FakeLogind) -> None:
        self._logind = logind
        self.send, self._receive = trio.open_memory_channel[bool](10)

    async def inhibit_delay(self) -> float:
        await trio.lowlevel.checkpoint()
        return self._logind.delay

    async def is_preparing(self) -> bool:
        await trio.lowlevel.checkpoint()
        return self._logind.is_preparing

    async def override_delay(self, seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        self._logind.told.append(seconds)
        if self._logind.obeys:
            self._logind.delay = seconds

    async def inhibit(self) -> InhibitLock:
        await trio.lowlevel.checkpoint()
        lock = FakeLock()
        self._logind.locks.append(lock)
        return lock

    async def wait_change(self) -> bool:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel as exc:
            raise LogindError("the connection to D-Bus is lost") from exc
