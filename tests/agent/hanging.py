"""A disk whose calls may not return, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

import trio

from kubelet_trio.model import Offload, Purpose
from kubelet_trio.model.threads import BOUNDS
from tests.simulation.hard_world import Disk

P = ParamSpec("P")
T = TypeVar("T")

# What is asked of the kernel alone, while it is memory that the node is short of.
_OFF_DISK = {Purpose.SIGNALS, Purpose.USAGE, Purpose.CGROUPS, Purpose.PROCESSES}


class HangingDisk(Disk):
    """A disk whose calls may not return at all until it is well; see `model.threads`."""

    def __init__(self) -> None:
        super().__init__()
        self._well = trio.Event()
        self._well.set()
        self._let_go = trio.Event()

    def hang(self) -> None:
        self._well = trio.Event()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Hang until the end of the block, however that comes about."""
        self.hang()
        try:
            yield
        finally:
            self.mend()

    def mend(self) -> None:
        self.error = 0
        self._well.set()

    def begin_threads(self) -> None:
        """Let an agent have threads of its own."""
        self._let_go = trio.Event()

    def end_threads(self) -> None:
        """Let the agent's cancelled callers go, as at the end of its process."""
        self._let_go.set()

    def of(self, purpose: Purpose) -> Offload:
        return partial(self._call, purpose)

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._call(Purpose.OTHER, fn, *args, **kwargs)

    async def _call(
        self, purpose: Purpose, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        well, let_go, bounds = self._well, self._let_go, BOUNDS[purpose]
        if purpose not in _OFF_DISK and not well.is_set():
            with trio.move_on_after(bounds.deadline):
                async with trio.open_nursery() as nursery:
                    nursery.cancel_scope.shield = not bounds.only_reads
                    for event in (well, let_go):
                        nursery.start_soon(_cancel_when, event, nursery.cancel_scope)
            if let_go.is_set():
                await trio.sleep_forever()
            if not well.is_set():
                raise TimeoutError("the disk does not answer")
        return await self.offload(fn, *args, **kwargs)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
