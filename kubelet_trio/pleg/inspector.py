"""Queries the runtime about the objects of one pod."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias, TypeVar

import trio

from kubelet_trio.containers import PodIdentity, pod_identity
from kubelet_trio.cri import Listing, Runtime, RuntimeCallError, RuntimeObjectNotFoundError, v1
from kubelet_trio.model import ContainerId, Meter, PodUid, RuntimePod, SandboxId
from kubelet_trio.pleg.slots import CallSlot, CallSlots
from kubelet_trio.pleg.state import PlegState
from kubelet_trio.pleg.table import PodListing, Queries, is_final, lacks_status

Entry = TypeVar("Entry", "v1.PodSandbox", "v1.Container")

# Returns whether an object with these annotations belongs to this agent.
Owns: TypeAlias = Callable[[Mapping[str, str]], bool]


class Inspector:
    """Queries statuses and writes the answers into the state."""

    def __init__(
        self,
        runtime: Runtime,
        state: PlegState,
        is_guarded: Callable[[ContainerId], bool],
        owns: Owns,
    ) -> None:
        """Take what is needed to query.

        Args:
            runtime: the container runtime.
            state: receives the answers.
            is_guarded: whether an exit watcher will report a container's exit.
            owns: whether an object with these annotations belongs to this agent.
        """
        self._runtime = runtime
        self._state = state
        self._is_guarded = is_guarded
        self._owns = owns
        self._slots = CallSlots()

    async def refresh(
        self,
        uid: PodUid,
        *,
        sandboxes: Iterable[SandboxId],
        containers: Iterable[ContainerId],
        removed: Iterable[str],
        listing: bool,
    ) -> RuntimePod:
        """Query a pod and return its snapshot, see `Pleg.refresh`. Raises `RuntimeCallError`."""
        asked_at, state = trio.current_time(), self._state
        queries = Queries(set(sandboxes), set(containers))
        removed = tuple(removed)
        for object_id in removed:
            state.remove(object_id)
        done, failure = False, None
        try:
            if listing or state.is_dirty(uid):
                await self._refresh_listed(uid, queries)
            else:
                await self._refresh_known(uid, queries, everything=not (queries or removed))
            done = True
        except RuntimeCallError as exc:
            failure = exc
            raise
        finally:
            # Also after a cancellation: what the worker's last call did is then unknown as well.
            if not done:
                state.mark_dirty(uid, failure)
        state.publish(uid, asked_at, quiet=True)
        return state.cache.get(uid)

    async def _refresh_known(self, uid: PodUid, queries: Queries, *, everything: bool) -> None:
        """Query the named objects, and those whose exit no watcher would report."""
        ticket = self._state.ticket()
        # No listing has shown the named objects yet, so the next one must be compared.
        self._state.must_compare |= bool(queries)
        for sandbox_id in queries.sandboxes:
            self._state.see_sandbox(uid, sandbox_id, ticket)
        for container_id in queries.containers:
            self._state.see_container(uid, container_id, ticket)
        if table := self._state.tables.get(uid):
            for sandbox_id, sandbox in table.sandboxes.items():
                if lacks_status(sandbox.record):
                    queries.sandboxes.add(sandbox_id)
            for container_id, container in table.containers.items():
                if is_final(container.record):
                    queries.containers.discard(container_id)
                elif everything or not self._is_guarded(container_id):
                    queries.containers.add(container_id)
        await self._ask_or_raise(uid, queries)

    async def _refresh_listed(self, uid: PodUid, named: Queries) -> None:
        """List the pod, then query the named and the changed objects."""
        sandboxes_asked = self._state.ticket()
        sandboxes = await self._runtime.list_pod_sandboxes(uid=uid)
        containers_asked = self._state.ticket()
        containers = await self._runtime.list_containers(uid=uid)
        listing = PodListing(
            self._own(sandboxes), self._own(containers), sandboxes_asked, containers_asked
        )
        identity = next(_identities(sandboxes, containers), PodIdentity(uid, "", ""))
        queries = self._state.apply(uid, listing, identity)
        queries.sandboxes |= {known for known in named.sandboxes if self._state.pod_of(known)}
        queries.containers |= {
            known for known in named.containers if not self._state.has_ended(known)
        }
        await self._ask_or_raise(uid, queries)
        self._state.mark_clean(uid, sandboxes_asked)

    def _own(self, listing: Listing[Entry]) -> dict[str, Entry]:
        return {
            key: entry for key, entry in listing.entries.items() if self._owns(entry.annotations)
        }

    async def _ask_or_raise(self, uid: PodUid, queries: Queries) -> None:
        errors = await self.ask(uid, queries)
        if errors:
            raise errors[0]

    async def ask(self, uid: PodUid, queries: Queries) -> list[RuntimeCallError]:
        """Send status queries concurrently; return the errors.

        An object that does not exist any more is no error; it is recorded as gone.
        """
        errors: list[RuntimeCallError] = []
        asks = [partial(self._ask_sandbox, key, errors) for key in sorted(queries.sandboxes)]
        asks += [partial(self._ask_container, key, errors) for key in sorted(queries.containers)]
        if len(asks) == 1:  # most: no task for it
            await asks[0](await self._slots.take())
            return errors
        async with trio.open_nursery() as calls:
            for ask in asks:
                # A pod may have hundreds of containers, so a task begins once it has its slot.
                calls.start_soon(ask, await self._slots.take())
        return errors

    async def ask_container(self, container_id: ContainerId) -> None:
        """Query and record one container's status. Raises `RuntimeCallError`."""
        state = self._state
        ticket, verbose = state.ticket(), state.wants_pid(container_id)
        try:
            status, pid = await self._runtime.container_status(container_id, verbose=verbose)
        except RuntimeObjectNotFoundError:
            state.mark_gone(container_id)
        else:
            if status.id != container_id:
                raise _wrong_id("ContainerStatus", container_id, status.id)
            state.learn_container(status, pid if verbose else None, ticket)

    async def _ask_sandbox(
        self, sandbox_id: SandboxId, errors: list[RuntimeCallError], slot: CallSlot
    ) -> None:
        with slot:
            ticket = self._state.ticket()
            try:
                status = await self._runtime.pod_sandbox_status(sandbox_id)
            except RuntimeObjectNotFoundError:
                self._state.mark_gone(sandbox_id)
            except RuntimeCallError as exc:
                errors.append(exc)
            else:
                if status.id != sandbox_id:
                    errors.append(_wrong_id("PodSandboxStatus", sandbox_id, status.id))
                    return
                self._state.learn_sandbox(status, ticket)

    async def _ask_container(
        self, container_id: ContainerId, errors: list[RuntimeCallError], slot: CallSlot
    ) -> None:
        with slot:
            try:
                await self.ask_container(container_id)
            except RuntimeCallError as exc:
                errors.append(exc)


def _wrong_id(call: str, asked: str, answered: str) -> RuntimeCallError:
    """Return the error of a runtime that confuses its objects: such an answer proves nothing."""
    return RuntimeCallError(call, f"the runtime returned the status of {answered!r} for {asked!r}")


def _identities(
    sandboxes: Iterable[v1.PodSandbox], containers: Iterable[v1.Container]
) -> Iterator[PodIdentity]:
    for entry in itertools.chain[v1.PodSandbox | v1.Container](sandboxes, containers):
        if identity := pod_identity(entry.labels):
            yield identity


def observe_query(meter: Meter | None, began: float) -> None:
    """Record that one pod has been queried since the Trio time `began`."""
    if meter is not None:
        meter.observe("kubelet_pleg_pod_relist_duration_seconds", trio.current_time() - began)
