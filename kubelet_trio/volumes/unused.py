"""Undoes what no pod needs any more: staged volumes, attached disks, sessions.

The teardown of a pod tries that once, for at most 10 s. What failed or hung then, what a lost pod
has left, and what an earlier agent has left is found here on disk: after each teardown of such
volumes, and once a minute. Each volume has a task of its own, which tries until the volume is
undone or in use again, with a back-off from 500 ms to 2m2s
(pkg/util/goroutinemap/exponentialbackoff). So a driver that hangs or fails delays no other volume,
and a kind of volume whose directories cannot be read delays no other kind.

A restarted child forgets nothing: it finds the same on disk. The tasks of the one before it have
ended; a call to the host that one has left running keeps the lock of its volume (`KeyedLocks`), so
nothing is undone twice at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from kubelet_trio.model import Backoff, Phase, get_logger, next_due
from kubelet_trio.volumes.async_volumes import FIRST_DELAY, LONGEST_DELAY, AsyncVolumes
from kubelet_trio.volumes.errors import VolumeError

log = get_logger()

_PERIOD = 60.0  # seconds between looks without a teardown


@dataclass(slots=True)
class UnusedVolumes:
    """Looks for volumes that no pod needs, and undoes them."""

    volumes: AsyncVolumes
    _busy: set[str] = field(default_factory=set)  # names of those that a task undoes
    _problems: dict[str, str] = field(default_factory=dict)  # with the last look, by the kind

    async def run(self) -> None:
        """Undo what no pod needs until cancelled. Call it when every source has delivered."""
        try:
            async with trio.open_nursery() as tasks:
                while True:
                    self.volumes.torn_down.clear()
                    await self._look(tasks)
                    with trio.move_on_at(next_due(_PERIOD, Phase.VOLUMES)):
                        await self.volumes.torn_down.wait_ring()
                        # The teardown has just tried: this is the first delay of what failed.
                        await trio.sleep(FIRST_DELAY)
        finally:
            self._busy.clear()

    async def clean(self) -> None:
        """Undo everything once, side by side. Raises `VolumeError` for the first that failed."""
        found, failed = await self.volumes.unused()
        errors: dict[str, VolumeError] = {}

        async def one(name: str, undo: Callable[[], Awaitable[None]]) -> None:
            try:
                await undo()
            except VolumeError as exc:
                errors[name] = exc

        async with trio.open_nursery() as tasks:
            for name, undo in found.items():
                tasks.start_soon(one, name, undo)
        for failures in (errors, failed):
            if failures:
                raise failures[min(failures)]

    async def _look(self, tasks: trio.Nursery) -> None:
        """Start a task for each unused volume that has none."""
        found, failed = await self.volumes.unused()
        problems = {kind: str(exc) for kind, exc in failed.items()}
        for kind, problem in problems.items():
            if problem != self._problems.get(kind):
                log.warning("volumes.not_read", kind=kind, error=problem)
        self._problems = problems
        for name, undo in found.items():
            if name not in self._busy:
                self._busy.add(name)
                tasks.start_soon(self._keep_trying, name, undo)

    async def _keep_trying(self, name: str, undo: Callable[[], Awaitable[None]]) -> None:
        """Undo one volume, unless a pod uses it again. Ends when that has succeeded."""
        backoff, told = Backoff(FIRST_DELAY, LONGEST_DELAY), ""
        while True:
            try:
                await undo()
            except VolumeError as exc:
                if str(exc) != told:
                    told = str(exc)
                    log.warning("volume.not_undone", volume=name, error=told)
            else:
                self._busy.discard(name)
                return
            await trio.sleep(backoff.next_delay())
