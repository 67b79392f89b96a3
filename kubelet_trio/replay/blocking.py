"""Blocking work in a replay: done at once, except where a recorded mount took its time.

Work with mounts in it runs in threads, as on a real node, since a mount cannot wait otherwise. A
thread that works holds the virtual clock; one that waits for the end of its mount does not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import trio

from kubelet_trio.model import Offload, Purpose, inline_offload, offload_for, thread_offload

P = ParamSpec("P")
T = TypeVar("T")

_MOUNTING = frozenset({Purpose.VOLUMES, Purpose.DEVICES})


class _Work:
    """One blocking call. `waits`: for a virtual time; else the clock must not move."""

    def __init__(self) -> None:
        self.waits = False


_current: ContextVar[_Work | None] = ContextVar("replayed_work", default=None)


class ReplayOffload:
    """An `OffloadByPurpose`. `hold_clock` runs beside its callers."""

    def __init__(self, *, threads: bool) -> None:
        """`threads`: whether mounts may have to wait."""
        self._has_threads = threads
        self._works: set[_Work] = set()
        self._news = trio.Event()
        self._closed = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await inline_offload(fn, *args, **kwargs)

    def of(self, purpose: Purpose) -> Offload:
        """Return the offload for a purpose."""
        if not self._has_threads or purpose not in _MOUNTING:
            return self
        return _Mounting(self, offload_for(thread_offload, purpose))

    def close(self) -> None:
        """End all waits: the replay is over."""
        self._closed.set()

    async def hold_clock(self) -> None:
        """Keep the virtual clock from jumping while a thread works, until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        while True:
            while any(not work.waits for work in self._works):
                await trio.lowlevel.checkpoint()
            self._news = trio.Event()
            await self._news.wait()

    async def run(
        self, offload: Offload, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run work in a thread."""
        work = _Work()

        def counted() -> T:
            _current.set(work)
            try:
                return fn(*args, **kwargs)
            finally:
                # Its caller may have left it: else this follows below.
                if work.waits:
                    self._works.discard(work)

        counted.__qualname__ = getattr(fn, "__qualname__", "work")
        self._works.add(work)
        self._news.set()
        try:
            return await offload(counted)
        finally:
            self._works.discard(work)

    def wait(self, until: float) -> None:
        """Wait in a thread for a virtual time; return at once outside of one.

        Raises TimeoutError at the end of the replay.
        """
        work, token = _current.get(), self._token
        if work is None or token is None:
            return
        try:
            trio.from_thread.run(self._sleep, work, until, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled) as exc:
            raise TimeoutError("the replay has ended") from exc  # noqa: ASYNC104  # a thread
        if self._closed.is_set():
            raise TimeoutError("the replay ends")

    async def _sleep(self, work: _Work, until: float) -> None:
        work.waits = True
        with trio.move_on_at(until):
            await self._closed.wait()
        work.waits = False
        self._news.set()


class _Mounting:
    """The offload for one purpose, in threads."""

    def __init__(self, replayed: ReplayOffload, threads: Offload) -> None:
        self._replayed = replayed
        self._threads = threads

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._replayed.run(self._threads, fn, *args, **kwargs)
