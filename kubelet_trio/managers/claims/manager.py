"""Prepares the claims of pods before they start, and gives them back when they have ended.

The manager is the one writer of the node's claims. A pod is noted at its claims, on disk, before a
driver is asked: whatever comes then, it is known what to give back. The last pod of a claim has it
unprepared, after its containers have stopped. A pod whose claims do not pass the checks is not
noted: its driver may never have been on the node, and would hold up the pod's end for ever.

Sources: KEP-4381 and pkg/kubelet/cm/dra/manager.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import trio
from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.asking import asking_for
from kubelet_trio.managers.claims.calls import prepare_all, unprepare_all
from kubelet_trio.managers.claims.checkpoint import CHECKPOINT, encode_claims
from kubelet_trio.managers.claims.state import (
    ClaimTable,
    claims_of,
    in_use,
    left_by,
    used_by,
    with_claims,
    with_devices,
    without_claims,
)
from kubelet_trio.managers.claims.tasks import LINGER, ClaimTasks, Work
from kubelet_trio.managers.claims.types import (
    Claim,
    ClaimDevice,
    ClaimDriver,
    ClaimDrivers,
    ClaimError,
    ClaimKey,
    ClaimSource,
    DeviceHealths,
)
from kubelet_trio.managers.claims.usage import (
    PodClaim,
    asked_by,
    cdi_ids,
    check_claim,
    claim_health,
    devices_for,
    pod_claims,
)
from kubelet_trio.managers.node.checkpoints import CheckpointKeeper
from kubelet_trio.managers.shares import CheckpointError, ClaimHealth
from kubelet_trio.model import Bell, Meter, PodUid, get_logger, pod_uid
from kubelet_trio.supervision import ChildSpec

log = get_logger()

_PERIOD = 60.0  # seconds: defaultReconcilePeriod
_DURATION = "dra_operations_duration_seconds"


class ResourceClaims:
    """The claims of this node's pods."""

    def __init__(
        self,
        table: ClaimTable,
        keeper: CheckpointKeeper,
        source: ClaimSource,
        drivers: ClaimDrivers,
        meter: Meter,
        *,
        extended: bool = True,
    ) -> None:
        """Begin with what an earlier agent has left.

        Args:
            table: its claims; none of them counts as prepared.
            keeper: writes the checkpoint.
            source: has the ResourceClaim objects.
            drivers: prepare them.
            meter: measures operations.
            extended: whether extended resources may come from claims (the gate
                DRAExtendedResource).
        """
        self._table = table
        self._keeper = keeper
        self._source = source
        self._drivers = drivers
        self._meter = meter
        self._extended = extended
        self._tasks = ClaimTasks()
        self._version = keeper.version  # of the keeper's, that has this table
        self._doubt = Bell()  # rung when claims may have been left behind
        self._trouble: dict[PodUid, str] = {}  # as last logged

    @property
    def table(self) -> ClaimTable:
        """The claims by name, as of now."""
        return self._table

    def in_use(self) -> Mapping[str, int]:
        """Return how many claims are prepared, by driver, and all of them as `<any>`."""
        return in_use(self._table)

    def children(
        self, known_pods: Callable[[], Collection[PodUid] | None]
    ) -> tuple[ChildSpec, ...]:
        """Return what the supervision tree runs; `known_pods` as `reconcile` has it."""
        return (
            ChildSpec("checkpoints", self._keeper.run),
            ChildSpec("calls", self._tasks.run, stop_grace=LINGER + 1.0),
            ChildSpec("reconcile", partial(self.reconcile, known_pods)),
        )

    # Preparation

    async def prepare(self, pod: Pod) -> None:
        """Prepare the claims of a pod, before its sandbox runs. Idempotent.

        Raises:
            ClaimError: one cannot be prepared now: call again later. A cancelled call goes on at
                the drivers.
        """
        with asking_for(pod_uid(pod)):
            await self._measured("PrepareResources", partial(self._prepare, pod))

    async def _measured(self, operation: str, act: Work) -> None:
        began, is_error = trio.current_time(), True
        try:
            await act()
            is_error = False
        except ClaimError as exc:
            verb = operation.removesuffix("Resources").lower()
            raise ClaimError(f"{verb} dynamic resources: {exc}") from exc
        finally:
            took = trio.current_time() - began
            self._meter.observe(_DURATION, took, (operation, "true" if is_error else "false"))

    async def _prepare(self, pod: Pod) -> None:
        used = pod_claims(pod, extended=self._extended)
        if not used:
            return
        wanted = await self._allowed(pod, used)
        keys = {claim.ref.key for claim in wanted}
        await self._tasks.finish(keys, partial(self._begin_prepare, pod_uid(pod), wanted))
        # Not in the task: a disk that hangs must not keep the pod from its end.
        await self._keep("state")

    async def _allowed(self, pod: Pod, used: Sequence[PodClaim]) -> list[Claim]:
        """Return the claims as they are now, which the pod may use. Raises `ClaimError`."""
        wanted: dict[int, Claim | ClaimError] = {}

        async def check(index: int, claim: PodClaim) -> None:
            try:
                wanted[index] = check_claim(pod, claim, await self._source.get(claim.key))
            except ClaimError as exc:
                wanted[index] = exc

        async with trio.open_nursery() as nursery:
            for index, claim in enumerate(used):
                nursery.start_soon(check, index, claim)
        found = []
        for _, each in sorted(wanted.items()):
            if isinstance(each, ClaimError):
                raise each
            found.append(each)
        return found

    async def _begin_prepare(self, uid: PodUid, wanted: Sequence[Claim]) -> Work | None:
        """Note a pod at its claims; return what prepares them. Raises `ClaimError`."""
        # Although the claim may be prepared: without its driver, something is wrong with the node.
        drivers = {name: self._drivers.find(name) for claim in wanted for name in claim.drivers}
        noted = {claim.ref.key: used_by(self._known(claim), uid) for claim in wanted}
        before = [self._table[key] for key in noted if key in self._table]
        self._take(with_claims(self._table, noted.values()))
        is_kept = False
        try:
            await self._keep("cache")
            is_kept = True
        finally:
            if not is_kept:
                # No driver was asked: there is nothing that the pod would have to give back.
                self._take(with_claims(without_claims(self._table, noted), before))
        due = [claim for claim in noted.values() if not claim.is_prepared]
        return partial(self._finish_prepare, due, drivers) if due else None

    def _known(self, claim: Claim) -> Claim:
        """Return what is known of a claim; itself if nothing is. Raises `ClaimError`."""
        known = self._table.get(claim.ref.key, claim)
        if known.ref.uid != claim.ref.uid:
            self._doubt.ring()
            raise ClaimError(
                f"old ResourceClaim with same name {claim.ref.name} and different UID "
                f"{known.ref.uid} still exists (previous pod force-deleted?!)"
            )
        return known

    async def _finish_prepare(
        self, due: Sequence[Claim], drivers: Mapping[str, ClaimDriver]
    ) -> None:
        answers = await prepare_all(drivers, due)
        made = [
            with_devices(
                claim,
                answers.done.get(claim.ref.uid, {}),
                is_prepared=answers.is_whole(claim),
            )
            for claim in due
        ]
        self._take(with_claims(self._table, made))
        answers.check()

    async def _keep(self, what: str) -> None:
        """Wait until the claims are on disk. Raises `ClaimError`."""
        try:
            await self._keeper.wait_kept(self._version)
        except CheckpointError as exc:
            raise ClaimError(f"checkpoint ResourceClaim {what}: {exc}") from exc

    # Return

    async def unprepare(self, uid: PodUid) -> None:
        """Give back what a pod uses, after its containers have stopped. Idempotent.

        The disk is not waited for: a claim that it still names is only given back once more.

        Raises:
            ClaimError: a driver fails, or is not registered: call again later.
        """
        await self._measured("UnprepareResources", partial(self._unprepare, uid))

    async def _unprepare(self, uid: PodUid) -> None:
        while held := claims_of(self._table, uid):
            await self._give_back(uid, held)

    async def _give_back(self, uid: PodUid, held: Iterable[Claim]) -> None:
        keys = {claim.ref.key for claim in held}
        with asking_for(uid):
            await self._tasks.finish(keys, partial(self._begin_unprepare, uid, keys))

    async def _begin_unprepare(self, uid: PodUid, keys: Collection[ClaimKey]) -> Work | None:
        found = [self._table[key] for key in sorted(keys) if key in self._table]
        last = [claim for claim in found if claim.pods <= {uid}]
        shared = [left_by(claim, uid) for claim in found if claim not in last]
        self._take(with_claims(self._table, shared))
        return partial(self._finish_unprepare, last) if last else None

    async def _finish_unprepare(self, claims: Sequence[Claim]) -> None:
        answers = await unprepare_all(self._drivers, claims)
        done = {claim.ref.key for claim in claims if answers.is_whole(claim)}
        self._take(without_claims(self._table, done))
        answers.check()

    # What is left behind

    async def reconcile(
        self,
        known_pods: Callable[[], Collection[PodUid] | None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Give back the claims of pods that are not known any more, until cancelled.

        `known_pods` returns the pods that may use claims: those that are to start, and those that
        have not ended; None while not all sources have delivered.
        """
        task_status.started()
        while True:
            with trio.move_on_after(_PERIOD):
                await self._doubt.wait_ring()
            known = known_pods()
            if known is None:
                continue
            users = {uid for claim in self._table.values() for uid in claim.pods}
            async with trio.open_nursery() as nursery:
                for uid in sorted(users - set(known)):
                    nursery.start_soon(self._abandon, uid, claims_of(self._table, uid))
                unused = tuple(claim for claim in self._table.values() if not claim.pods)
                if unused:
                    nursery.start_soon(self._abandon, PodUid(""), unused)
            self._trouble = {uid: text for uid, text in self._trouble.items() if uid in users}

    async def _abandon(self, uid: PodUid, held: Sequence[Claim]) -> None:
        try:
            await self._give_back(uid, held)
        except ClaimError as exc:
            if self._trouble.get(uid) != str(exc):
                self._trouble[uid] = str(exc)
                log.warning("claims.left_behind", podUID=uid, error=str(exc), retry_in=_PERIOD)

    # What containers have

    def cdi_ids(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """Return the CDI devices that a container gets. Raises `ClaimError` if it has none yet."""
        return cdi_ids(self._held(pod), pod, container, extended=self._extended)

    def claims_of(self, pod: Pod, container: Container) -> tuple[Claim, ...]:
        """Return the prepared claims that a container uses, in the order of its pod's spec."""
        try:
            used = [a.claim.key for a in asked_by(pod, container, extended=self._extended)]
        except ClaimError:
            return ()
        held = self._held(pod)
        return tuple(held[key] for key in dict.fromkeys(used) if key in held)

    def devices_of(self, pod: Pod, container: Container) -> tuple[tuple[str, ClaimDevice], ...]:
        """Return the devices that a container has, each with its driver."""
        try:
            asked = list(asked_by(pod, container, extended=self._extended))
        except ClaimError:
            return ()
        held = self._held(pod)
        known = ((held.get(used.key), request) for used, request in asked)
        found = (
            device
            for claim, request in known
            if claim is not None
            for device in devices_for(claim, request)
        )
        return tuple(dict.fromkeys(found))

    def health(
        self, pod: Pod, container: Container, healths: DeviceHealths, *, messages: bool = True
    ) -> tuple[ClaimHealth, ...]:
        """Return the health of a container's devices; without `messages` only whether they are."""
        try:
            return claim_health(self._held(pod), pod, container, healths, messages=messages)
        except ClaimError:
            return ()  # not made yet

    def _held(self, pod: Pod) -> ClaimTable:
        """Return the claims that a pod uses; others may still have the name of one of its own."""
        uid = pod_uid(pod)
        return {key: claim for key, claim in self._table.items() if uid in claim.pods}

    def holds(self, uid: PodUid) -> bool:
        """Whether a pod has not given back all that it uses."""
        return any(uid in claim.pods for claim in self._table.values())

    def pods_with(self, driver: str, devices: Collection[tuple[str, str]]) -> frozenset[PodUid]:
        """Return the pods with any of a driver's devices, given as pool and name."""
        return frozenset(
            uid
            for claim in self._table.values()
            if any((d.pool, d.device) in devices for d in claim.drivers.get(driver, ()))
            for uid in claim.pods
        )

    def _take(self, table: ClaimTable) -> None:
        was, self._table = self._table, table
        if _stored(table) != _stored(was):
            self._keeper.put(CHECKPOINT, partial(encode_claims, table))
            self._version = self._keeper.version


def _stored(table: ClaimTable) -> ClaimTable:
    """Return what the checkpoint has of the claims."""
    return {key: replace(claim, is_prepared=False) for key, claim in table.items()}
