"""Asking the runtime about the objects of one pod."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import trio

from kubelet_trio.containers import PodIdentity, pod_identity
from kubelet_trio.cri import Listing, Runtime, RuntimeCallError, RuntimeObjectNotFoundError, v1
from kubelet_trio.model import ContainerId, PodUid, RuntimePod, SandboxId
from kubelet_trio.pleg.book import Book
from kubelet_trio.pleg.table import Asks, PodListing, is_final, lacks_status

Entry = TypeVar("Entry", "v1.PodSandbox", "v1.Container")

# Whether an object with these annotations is this agent's.
Owns: TypeAlias = Callable[[Mapping[str, str]], bool]

CALLS_AT_ONCE = 16
PATIENCE = 1.0


class Inspector:
    """Asks for statuses and writes the answers into the book."""

    def __init__(
        self,
        runtime: Runtime,
        book: Book,
        is_guarded: Callable[[ContainerId], bool],
        owns: Owns,
    ) -> None:
        """Take the runtime to ask.

        Args:
            runtime: whom to ask.
            book: where the answers go.
            is_guarded: whether an exit watcher will tell of a container's end.
            owns: tells by an object's annotations whether it is this agent's at all.
        """
        self._runtime = runtime
        self._book = book
        self._is_guarded = is_guarded
        self._owns = owns
        self._slots = trio.CapacityLimiter(CALLS_AT_ONCE)

    async def refresh(
        self,
        uid: PodUid,
        *,
        sandboxes: Iterable[SandboxId],
        containers: Iterable[ContainerId],
        removed: Iterable[str],
        listing: bool,
    ) -> RuntimePod:
        """See `Pleg.refresh`."""
        asked_at, book = trio.current_time(), self._book
        asks = Asks(set(sandboxes), set(containers))
        removed = tuple(removed)
        for object_id in removed:
            book.remove(object_id)
        done, failure = False, None
        try:
            if listing or book.is_dirty(uid):
                await self._refresh_listed(uid, asks)
            else:
                await self._refresh_known(uid, asks, everything=not (asks or removed))
            done = True
        except RuntimeCallError as exc:
            failure = exc
            raise
        finally:
            if not done:
                book.mark_dirty(uid, failure)
        book.publish(uid, asked_at, quiet=True)
        return book.cache.get(uid)

    async def _refresh_known(self, uid: PodUid, asks: Asks, *, everything: bool) -> None:
        """Ask about the objects named, and about those whose end nobody would tell."""
        ticket = self._book.ticket()
        # No listing has shown them: the next one must be compared in any case.
        self._book.unsettled |= bool(asks)
        for sandbox_id in asks.sandboxes:
            self._book.see_sandbox(uid, sandbox_id, ticket)
        for container_id in asks.containers:
            self._book.see_container(uid, container_id, ticket)
        if table := self._book.tables.get(uid):
            for sandbox_id, sandbox in table.sandboxes.items():
                if lacks_status(sandbox.record):
                    asks.sandboxes.add(sandbox_id)
            for container_id, container in table.containers.items():
                if is_final(container.record):
                    asks.containers.discard(container_id)
                elif everything or not self._is_guarded(container_id):
                    asks.containers.add(container_id)
        await self._ask_or_raise(uid, asks)

    async def _refresh_listed(self, uid: PodUid, named: Asks) -> None:
        """List the pod afresh, then ask about what is named and what changed."""
        sandboxes_asked = self._book.ticket()
        sandboxes = await self._runtime.list_pod_sandboxes(uid=uid)
        containers_asked = self._book.ticket()
        containers = await self._runtime.list_containers(uid=uid)
        listing = PodListing(
            self._own(sandboxes), self._own(containers), sandboxes_asked, containers_asked
        )
        identity = next(_identities(sandboxes, containers), PodIdentity(uid, "", ""))
        asks = self._book.apply(uid, listing, identity)
        asks.sandboxes |= {known for known in named.sandboxes if self._book.home(known)}
        asks.containers |= {known for known in named.containers if not self._book.is_over(known)}
        await self._ask_or_raise(uid, asks)
        self._book.clean(uid, sandboxes_asked)

    def _own(self, listing: Listing[Entry]) -> dict[str, Entry]:
        return {
            key: entry for key, entry in listing.entries.items() if self._owns(entry.annotations)
        }

    async def _ask_or_raise(self, uid: PodUid, asks: Asks) -> None:
        errors = await self.ask(uid, asks)
        if errors:
            raise errors[0]

    async def ask(self, uid: PodUid, asks: Asks) -> list[RuntimeCallError]:
        """Ask for statuses, all at the same time; return the failures.

        An object that is not there any more is no failure: it is dropped.
        """
        errors: list[RuntimeCallError] = []
        async with trio.open_nursery() as questions:
            for sandbox_id in sorted(asks.sandboxes):
                questions.start_soon(self._ask_sandbox, sandbox_id, errors)
            for container_id in sorted(asks.containers):
                questions.start_soon(self._ask_container, container_id, errors)
        return errors

    async def ask_container(self, container_id: ContainerId) -> None:
        """Ask for one container's status and take note of it. Raises `RuntimeCallError`."""
        book = self._book
        ticket, verbose = book.ticket(), book.wants_pid(container_id)
        try:
            status, pid = await self._runtime.container_status(container_id, verbose=verbose)
        except RuntimeObjectNotFoundError:
            book.lose(container_id)
        else:
            book.learn_container(status, pid if verbose else None, ticket)

    async def _ask_sandbox(self, sandbox_id: SandboxId, errors: list[RuntimeCallError]) -> None:
        async with _Courtesy(self._slots):
            ticket = self._book.ticket()
            try:
                status = await self._runtime.pod_sandbox_status(sandbox_id)
            except RuntimeObjectNotFoundError:
                self._book.lose(sandbox_id)
            except RuntimeCallError as exc:
                errors.append(exc)
            else:
                self._book.learn_sandbox(status, ticket)

    async def _ask_container(
        self, container_id: ContainerId, errors: list[RuntimeCallError]
    ) -> None:
        async with _Courtesy(self._slots):
            try:
                await self.ask_container(container_id)
            except RuntimeCallError as exc:
                errors.append(exc)


def _identities(
    sandboxes: Iterable[v1.PodSandbox], containers: Iterable[v1.Container]
) -> Iterator[PodIdentity]:
    for entry in itertools.chain[v1.PodSandbox | v1.Container](sandboxes, containers):
        if identity := pod_identity(entry.labels):
            yield identity


class _Courtesy:
    """A slot among the calls in flight, waited for a moment only.

    The limit keeps a first relist from asking everything at once. It must not let calls
    that hang hold up the others, so who has waited for `PATIENCE` seconds goes anyway.
    """

    def __init__(self, slots: trio.CapacityLimiter) -> None:
        self._slots = slots
        self._held = False

    async def __aenter__(self) -> None:
        with trio.move_on_after(PATIENCE):
            await self._slots.acquire_on_behalf_of(self)
            self._held = True

    async def __aexit__(self, *exc_info: object) -> None:
        if self._held:
            self._slots.release_on_behalf_of(self)
