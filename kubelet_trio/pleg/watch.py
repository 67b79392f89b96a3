"""Exit watchers: one task per running container, in a nursery of its own.

The watcher opens a pidfd and asks the runtime once more whether the container still runs:
if it does, the process watched is the container's and not a later one with its number.
When it ends, the runtime knows it only some time later (about 60 ms, up to 0.5 s under
load), so its status is asked again and again with a short growing delay until it says so.
A container that still runs after 5 s was watched by a wrong PID (a runtime in another PID
namespace, say). Such a container, and any whose process cannot be watched, is *unguarded*:
the relist then comes every second.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import Backoff, Bell, ContainerId, PodUid, get_logger
from kubelet_trio.pleg.book import Book
from kubelet_trio.pleg.exits import ExitWaiter
from kubelet_trio.pleg.inspector import Inspector

log = get_logger()

FIRST_DELAY = 0.005
LONGEST_DELAY = 0.64
WRONG_PID_AFTER = 5.0
RETRY_DELAY = 1.0


class ExitWatchers:
    """Watches every running container whose PID is known."""

    def __init__(
        self, waiter: ExitWaiter | None, book: Book, on_unguarded: Callable[[], None]
    ) -> None:
        """Take what is needed to watch.

        Args:
            waiter: opens the watches; None: every container is unguarded.
            book: what runs, and where exits are written.
            on_unguarded: told when a container turns out not to be watchable.
        """
        self._waiter = waiter
        self._book = book
        self._on_unguarded = on_unguarded
        self._watches: dict[ContainerId, trio.CancelScope] = {}
        self._unwatchable: set[ContainerId] = set()
        self._news: dict[PodUid, None] = {}  # in order, each once
        self._woken = Bell()
        self._said: set[str] = set()

    def is_guarded(self, container_id: ContainerId) -> bool:
        """Whether a task is there to tell of this container's end."""
        return container_id in self._watches

    @property
    def count(self) -> int:
        return len(self._watches)

    def has_unguarded(self) -> bool:
        """Whether some running container's end would go unnoticed until a relist."""
        return any(not self._can_watch(record.id, record.pid) for _, record in self._book.running())

    def look_at(self, uid: PodUid) -> None:
        """Take note that records of a pod changed: start and end watches for it."""
        self._news[uid] = None
        self._woken.ring()

    async def run(self, inspector: Inspector) -> None:
        """Keep one watch per running container."""
        self._news.update(dict.fromkeys(self._book.tables))
        try:
            async with trio.open_nursery() as watches:
                while True:
                    for container_id in [c for c in self._watches if self._book.is_over(c)]:
                        self._watches[container_id].cancel()
                    for uid in self._take_news():
                        self._watch_pod(uid, watches, inspector)
                    await self._woken.wait_ring()
        finally:
            self._watches.clear()

    def _take_news(self) -> tuple[PodUid, ...]:
        news = tuple(self._news)
        self._news.clear()
        return news

    def _watch_pod(self, uid: PodUid, watches: trio.Nursery, inspector: Inspector) -> None:
        table = self._book.tables.get(uid)
        for record in tuple(table.running()) if table else ():
            if record.id in self._watches:
                continue
            if self._can_watch(record.id, record.pid):
                scope = self._watches[record.id] = trio.CancelScope()
                watches.start_soon(
                    self._watch, uid, record.id, record.pid, scope, inspector, name=record.id
                )
            else:
                self._on_unguarded()

    def _can_watch(self, container_id: ContainerId, pid: int) -> bool:
        return self._waiter is not None and pid > 0 and container_id not in self._unwatchable

    async def _watch(
        self,
        uid: PodUid,
        container_id: ContainerId,
        pid: int,
        scope: trio.CancelScope,
        inspector: Inspector,
    ) -> None:
        assert self._waiter is not None
        told = True
        with scope:
            try:
                with self._waiter.open(pid) as watch:
                    await self._ask_until_answered(uid, container_id, inspector)
                    await watch.wait_exited()
            except ProcessLookupError:
                pass  # It has ended already; or it lives where we cannot see it.
            except OSError as exc:
                self._give_up(container_id, f"cannot watch processes: {exc}")
                return
            told = await self._wait_told(uid, container_id, inspector)
        self._watches.pop(container_id, None)
        if not told and not self._book.is_over(container_id):
            self._give_up(container_id, "it runs on though its PID has ended")

    async def _ask_until_answered(
        self, uid: PodUid, container_id: ContainerId, inspector: Inspector
    ) -> None:
        """Ask for the status after the watch was opened; publishing an end cancels us."""
        while True:
            if await self._ask(uid, container_id, inspector):
                break
            await trio.sleep(RETRY_DELAY)
        await trio.lowlevel.checkpoint()

    async def _wait_told(
        self, uid: PodUid, container_id: ContainerId, inspector: Inspector
    ) -> bool:
        """Ask until the runtime has noticed the exit too; return whether it has."""
        backoff, patience = Backoff(FIRST_DELAY, LONGEST_DELAY), WRONG_PID_AFTER
        while not self._book.is_over(container_id):
            if patience <= 0:
                return False
            delay = backoff.next_delay()
            await trio.sleep(delay)
            if self._book.is_over(container_id):
                break
            # No answer says nothing about the PID, so it costs no patience.
            if await self._ask(uid, container_id, inspector):
                patience -= delay
        return True

    async def _ask(self, uid: PodUid, container_id: ContainerId, inspector: Inspector) -> bool:
        """Ask once and publish what came; return whether there was an answer."""
        try:
            await inspector.ask_container(container_id)
        except RuntimeCallError:
            return False
        self._book.publish(uid)
        return True

    def _give_up(self, container_id: ContainerId, why: str) -> None:
        self._watches.pop(container_id, None)
        self._unwatchable.add(container_id)
        self._unwatchable = {c for c in self._unwatchable if not self._book.is_over(c)}
        if why not in self._said:
            self._said.add(why)  # a node without pidfds would say so for every container
            log.warning("pleg.unguarded", container_id=container_id, reason=why)
        self._on_unguarded()
