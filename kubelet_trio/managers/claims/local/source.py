"""Serves claims to the manager as an API server, a scheduler and controllers would, without any.

All claims of a pod are allocated at once, so that no two pods wait for each other's devices. The
table is on disk before an allocation leaves this module: a crash between any two steps gives no
device twice. A claim stays allocated while a pod that uses it is known, or a driver may have
prepared it; then its devices are free, and pods that wait are woken.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from lightkube.models.core_v1 import Pod
from lightkube.models.resource_v1 import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceSlice,
)

from kubelet_trio.managers.claims.allocation import (
    AllocationError,
    DeviceId,
    NodeFacts,
    Selectors,
    allocate,
    gather_pools,
)
from kubelet_trio.managers.claims.local.documents import ClaimDocuments, Use, make_claim, uses
from kubelet_trio.managers.claims.local.state import (
    NOTHING,
    LocalTable,
    allocated,
    encode_local_claims,
    in_use,
    load_local_claims,
    reserved,
    save_local_claims,
    users,
    without_users,
)
from kubelet_trio.managers.claims.types import Claim, ClaimError, ClaimKey
from kubelet_trio.model import Bell, Offload, PodUid, get_logger, pod_key, pod_uid

log = get_logger()

_PERIOD = 2.0  # seconds between two looks at what waiting pods wait for


@dataclass(frozen=True, slots=True)
class OfferedSlices:
    """What drivers have put into files, and what is wrong with the rest of the files."""

    slices: tuple[ResourceSlice, ...] = ()
    problems: tuple[str, ...] = ()


class SliceReader(Protocol):
    """Reads the ResourceSlices that drivers hand to the node."""

    async def read(self) -> OfferedSlices:
        """Return the slices of the files as they are now. Raises no OSError: it is a problem."""
        ...


class LocalClaims:
    """A `ClaimSource` of a node without an API server. One writer: its calls take turns."""

    def __init__(
        self,
        root_dir: Path,
        node: NodeFacts,
        slices: SliceReader,
        *,
        offload: Offload,
        known_pods: Callable[[], Collection[PodUid] | None],
        prepared: Callable[[], Mapping[ClaimKey, Claim]],
        changed: Callable[[PodUid], None] = lambda _uid: None,
        make_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        on_table: Callable[[Callable[[], bytes]], None] = lambda _encode: None,
    ) -> None:
        """Read nothing yet: most nodes have no claims.

        Args:
            root_dir: has the file with the allocated claims.
            node: this one, as slices select it.
            slices: of drivers, besides the documents.
            offload: runs files and the search for devices in threads.
            known_pods: returns the pods that are to start and those that have not ended; None
                while not all sources have delivered.
            prepared: returns the claims that drivers may have prepared.
            changed: called for each waiting pod when it is worth to try again.
            make_uid: returns the UID of a new claim.
            on_table: is told of the table that was read, and of each one that is kept: with what
                returns the file's content, and may be called in a thread.
        """
        self._root_dir = root_dir
        self._node = node
        self._slices = slices
        self._offload = offload
        self._known_pods = known_pods
        self._prepared = prepared
        self._changed = changed
        self._make_uid = make_uid
        self._on_table = on_table
        self._turn = trio.Lock()
        self._table: LocalTable | None = None  # None: not read yet
        self._pods: Mapping[PodUid, Pod] = {}
        self._documents = ClaimDocuments()
        self._selectors = Selectors()
        self._waiting: dict[ClaimKey, OfferedSlices] = {}  # and what they found lacking
        self._doubt = Bell()

    @property
    def table(self) -> LocalTable:
        """The allocated claims, as of now."""
        return self._table or NOTHING

    def apply(self, pods: Mapping[PodUid, Pod], documents: ClaimDocuments) -> None:
        """Take the pods that are desired, and the documents. Never blocks."""
        is_new = documents != self._documents
        self._pods, self._documents = pods, documents
        if is_new:
            self._wake()

    async def get(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim with its allocation, reserved for the pods that use it.

        Raises:
            ClaimError: it has no document, there are no devices for it, or the node's disk fails.
        """
        async with self._turn:
            self._waiting.pop(key, None)
            table = await self._current()
            pods = list(self._users(key))
            if not pods:
                raise ClaimError(f"ResourceClaim {key.name}: no pod of this node uses it")
            if key not in table:
                table = await self._with_claims_of_one(key, [pod for pod, _ in pods], table)
            table = {**table, key: self._reserve(table[key], [pod for pod, _ in pods])}
            await self._keep(table)
            return table[key]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wake the pods that wait when slices change or devices are given back, until cancelled.

        Gives back, too, what nobody uses any more.
        """
        task_status.started()
        while True:
            await self._doubt.wait_ring()
            while self._waiting or self._table:
                await trio.sleep(_PERIOD)
                await self._look()

    async def _look(self) -> None:
        async with self._turn:
            try:
                await self._keep(await self._current())
            except ClaimError as exc:
                log.warning("claims.local_failed", error=str(exc), retry_in=_PERIOD)
                return
            if not self._waiting:
                return
            offered = await self._slices.read()
            if any(found != offered for found in self._waiting.values()):
                self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        found = {pod_uid(pod): None for key in waiting for pod, _ in self._users(key)}
        for uid in found:
            self._changed(uid)

    def _users(self, key: ClaimKey) -> Iterator[tuple[Pod, Use]]:
        """Yield the pods that use a claim and have not ended."""
        known = self._known_pods()
        for uid, pod in self._pods.items():
            if known is None or uid in known:
                yield from ((pod, use) for use in uses(pod) if use.key == key)

    async def _current(self) -> LocalTable:
        """Return the table without what nobody uses any more. Raises `ClaimError`."""
        if self._table is None:
            try:
                self._table = await self._offload(load_local_claims, self._root_dir)
            except (OSError, ValueError) as exc:
                raise ClaimError(str(exc)) from exc
            self._on_table(partial(encode_local_claims, self._table))
        known = self._known_pods()
        if known is None:  # some of the pods that use claims may not be known yet
            return self._table
        return without_users(self._table, known, self._prepared())

    async def _keep(self, table: LocalTable) -> None:
        """Take a table, once it is on disk. Raises `ClaimError`: it is as it was before."""
        if table != self._table:
            try:
                await self._offload(save_local_claims, self._root_dir, table)
            except OSError as exc:
                raise ClaimError(f"the allocated claims cannot be written: {exc}") from exc
            before, self._table = self.table, table
            self._on_table(partial(encode_local_claims, table))
            if before.keys() - table.keys():
                self._wake()  # there are free devices
        self._doubt.ring()

    async def _with_claims_of_one(
        self, key: ClaimKey, pods: Sequence[Pod], table: LocalTable
    ) -> LocalTable:
        """Return the table with all claims of the first of the pods for which there are devices.

        Raises the `ClaimError` of the first pod if there are for none.
        """
        offered = await self._slices.read()
        failure: ClaimError | None = None
        for pod in pods:
            try:
                return await self._with_claims(pod, table, offered)
            except ClaimError as exc:
                failure = failure or exc
        assert failure is not None  # there is a pod
        self._waiting[key] = offered
        self._doubt.ring()
        raise failure

    async def _with_claims(self, pod: Pod, table: LocalTable, offered: OfferedSlices) -> LocalTable:
        wanted = {use.key: use for use in uses(pod) if use.key not in table}
        claims = [make_claim(use, pod, self._documents) for use in wanted.values()]
        taken = {**self._held_by_drivers(table), **in_use(table)}
        slices = (*self._documents.slices, *offered.slices)
        try:
            results = await self._offload(
                _search, claims, slices, self._node, self._documents.classes, taken, self._selectors
            )
        except AllocationError as exc:
            raise ClaimError("; ".join((str(exc), *offered.problems))) from exc
        made = {
            key: self._reserve(allocated(claim, self._make_uid(), result), [pod])
            for key, claim, result in zip(wanted, claims, results, strict=True)
        }
        for key, claim in made.items():
            devices = sorted(str(device) for device in in_use({key: claim}))
            log.info("claims.allocated", claim=f"{key.namespace}/{key.name}", devices=devices)
        return {**table, **made}

    def _held_by_drivers(self, table: LocalTable) -> dict[DeviceId, str]:
        """Return prepared devices of claims that are not in the table: its file was lost."""
        return {
            DeviceId(driver, one.pool, one.device): f"{key.namespace}/{key.name}"
            for key, claim in self._prepared().items()
            if key not in table
            for driver, devices in claim.drivers.items()
            for one in devices
        }

    def _reserve(self, claim: ResourceClaim, pods: Sequence[Pod]) -> ResourceClaim:
        known = {pod.uid: pod for pod in users(claim)}
        for pod in pods:
            reference = ResourceClaimConsumerReference(
                name=pod_key(pod).name, resource="pods", uid=pod_uid(pod)
            )
            known.setdefault(pod_uid(pod), reference)
        return claim if len(known) == len(users(claim)) else reserved(claim, known.values())


def _search(
    claims: Sequence[ResourceClaim],
    slices: Sequence[ResourceSlice],
    node: NodeFacts,
    classes: Mapping[str, DeviceClass],
    taken: Mapping[DeviceId, str],
    selectors: Selectors,
) -> list[AllocationResult]:
    return allocate(claims, gather_pools(slices, node), classes, taken, selectors)
