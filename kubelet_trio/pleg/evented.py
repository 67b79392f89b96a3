"""The runtime's own events: they wake, they do not inform.

An event may come without any status, so none is read from it: what it is about is asked
for, if that is not known already and no exit watcher is about to tell. Most events follow
from what a worker just did, and the worker asks for itself. So an event about an object
not heard of yet is looked into a second later, when the worker's own answer is in.

The Go kubelet uses events only with its gate EventedPLEG, which is off, and gives them up for
good after five errors in a row. There they replace the relist's answers and make it a
matter of minutes; here they only wake, and no answer is taken from them. So they are used
wherever the runtime has them. While they do not come the relist looks as often as without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from kubelet_trio.cri import Runtime, RuntimeCallError, UnsupportedCallError, v1
from kubelet_trio.model import Backoff, ContainerId, Meter, PodUid, SandboxId, get_logger
from kubelet_trio.pleg.book import Book
from kubelet_trio.pleg.inspector import Inspector
from kubelet_trio.pleg.table import Asks

log = get_logger()

SECOND_LOOK = 1.0
FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 30.0


@dataclass(frozen=True, slots=True)
class _Lost:
    """How a stream of events ended, and whether any had come."""

    error: str
    heard: bool


class EventListener:
    """Listens to GetContainerEvents for as long as the runtime has it."""

    def __init__(
        self,
        runtime: Runtime,
        book: Book,
        inspector: Inspector,
        *,
        is_guarded: Callable[[ContainerId], bool],
        relist_soon: Callable[[], None],
        on_live: Callable[[], None],
    ) -> None:
        """Take what is needed to listen.

        Args:
            runtime: whose events.
            book: what is known already.
            inspector: asks for what is not.
            is_guarded: whether an exit watcher will tell of a container's end.
            relist_soon: for events about objects that nobody knows.
            on_live: told whenever `live` changes.
        """
        self._runtime = runtime
        self._book = book
        self._inspector = inspector
        self._is_guarded = is_guarded
        self._relist_soon = relist_soon
        self._on_live = on_live
        self._looking: set[str] = set()
        self.live = False
        self.meter: Meter | None = None  # told of streams that come and break

    async def run(self) -> None:
        """Listen until the runtime turns out not to have events; reconnect until then."""
        backoff = Backoff(FIRST_BACKOFF, LONGEST_BACKOFF)
        self._looking.clear()
        async with trio.open_nursery() as looks:
            while (lost := await self._hear(looks)) is not None:
                if lost.heard:
                    backoff.reset()
                delay = backoff.next_delay()
                log.debug("pleg.events_lost", error=lost.error, retry_in=delay)
                await trio.sleep(delay)

    async def _hear(self, looks: trio.Nursery) -> _Lost | None:
        """Listen to one stream to its end; None where the runtime has none.

        However it ends, even cleanly (a runtime that shuts down in order ends it with OK), from
        then on nobody tells of exits: the relist is to look as often as without events.
        """
        error = "the runtime has ended it"
        try:
            await self._listen(looks)
        except UnsupportedCallError:
            log.info("pleg.events_unsupported")
            return None
        except RuntimeCallError as exc:
            error = str(exc)
        finally:
            heard = self.live
            self._set_live(False)
        self._count("kubelet_evented_pleg_connection_error_count")
        return _Lost(error, heard)

    async def _listen(self, looks: trio.Nursery) -> None:
        async with self._runtime.container_events() as events:
            async for event in events:
                if not self.live:
                    self._count("kubelet_evented_pleg_connection_success_count")
                    # What happened while nobody listened is the relist's to find.
                    self._set_live(True)
                    self._relist_soon()
                self._take(event, looks)

    def _count(self, name: str) -> None:
        if self.meter is not None:
            self.meter.count(name)

    def _set_live(self, live: bool) -> None:
        if self.live is not live:
            self.live = live
            self._on_live()

    def _take(self, event: v1.ContainerEventResponse, looks: trio.Nursery) -> None:
        object_id = event.container_id
        delay = (
            0.0
            if event.container_event_type == v1.ContainerEventType.CONTAINER_STOPPED_EVENT
            else SECOND_LOOK
        )
        if not object_id or object_id in self._looking:
            return
        if not self._is_guarded(ContainerId(object_id)):
            self._looking.add(object_id)
            looks.start_soon(self._look, object_id, event.container_event_type, delay)

    async def _look(self, object_id: str, kind: v1.ContainerEventType, delay: float) -> None:
        await trio.sleep(delay)
        self._looking.discard(object_id)
        uid = self._book.home(object_id)
        gone = kind == v1.ContainerEventType.CONTAINER_DELETED_EVENT
        if uid is None:
            if not gone and not self._book.is_gone(object_id):
                self._relist_soon()
            return
        # An event of a start or a making tells nothing new of what has been asked since.
        told = kind != v1.ContainerEventType.CONTAINER_STOPPED_EVENT and self._book.is_asked(
            object_id
        )
        if gone or not (told or self._book.is_stopped(object_id)):
            await self._ask(uid, object_id)

    async def _ask(self, uid: PodUid, object_id: str) -> None:
        asks = Asks()
        if self._book.is_sandbox(object_id):
            asks.sandboxes.add(SandboxId(object_id))
        else:
            asks.containers.add(ContainerId(object_id))
        errors = await self._inspector.ask(uid, asks)
        if errors:
            self._book.mark_dirty(uid, errors[0])
            self._relist_soon()
        self._book.publish(uid)
