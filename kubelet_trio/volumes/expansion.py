"""Let volumes grow on the node, once the controller has grown what is behind them.

`plan_growth` decides, from claim and persistent volume, whether a volume has to grow here;
`VolumeGrowth` has its plugin do it and reports to the claim's status and by events. A claim may
recover from a size that cannot be reached (KEP-1790): its status then names the size that is
allocated, and `NodeResizePending` says that it is the node's turn.

Sizes known here are of this process only, as in the Go kubelet: the claim's status replaces them.

Source: NodeExpander and expandVolumeDuringMount in pkg/volume/util/operationexecutor, and
pkg/volume/util/resize_util.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import trio
from lightkube.models.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import (
    Backoff,
    EventSink,
    ObjectRef,
    get_logger,
    parse_quantity,
    pod_object_ref,
    rfc3339,
    to_units,
)
from kubelet_trio.objects import ObjectError
from kubelet_trio.volumes.errors import VolumeStepError
from kubelet_trio.volumes.spec import GrowingPlugin, VolumeSpec

log = get_logger()

_STORAGE = "storage"
_PENDING, _IN_PROGRESS = "NodeResizePending", "NodeResizeInProgress"
_INFEASIBLE, _ERROR = "NodeResizeInfeasible", "NodeResizeError"
# knownResizeConditions
_CONDITIONS = frozenset(("FileSystemResizePending", "Resizing", "ControllerResizeError", _ERROR))
_NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 122.0
_SUCCEEDED, _FAILED = "FileSystemResizeSuccessful", "FileSystemResizeFailed"


class GrowthProblem(Enum):
    """Why a plugin could not let a volume grow."""

    UNSUPPORTED = "unsupported"  # its driver does not grow volumes on nodes
    IN_USE = "in use"  # it cannot grow while it is published
    INFEASIBLE = "infeasible"  # it can never have this size
    FAILED = "failed"  # it has failed for good: nothing is in progress
    UNCERTAIN = "uncertain"  # nobody knows: no answer, or the driver is gone
    GONE = "gone"  # it is not set up any more: its pod has ended meanwhile


class GrowthError(VolumeStepError):
    """A plugin could not let a volume grow."""

    failed = "failed while expanding volume"

    def __init__(self, message: str, problem: GrowthProblem) -> None:
        super().__init__(message)
        self.problem = problem


class ClaimStatus(Protocol):
    """Writes to the status of claims."""

    async def patch(
        self, claim: PersistentVolumeClaim, body: Mapping[str, Any]
    ) -> PersistentVolumeClaim:
        """Send a strategic merge patch of a claim's status; return the new claim.

        Raises `ObjectError`.
        """
        ...


class NoClaimStatus:
    """The `ClaimStatus` of a node without an API server: documents have no status."""

    async def patch(
        self, claim: PersistentVolumeClaim, body: Mapping[str, Any]
    ) -> PersistentVolumeClaim:
        await trio.lowlevel.checkpoint()
        return claim


@dataclass(frozen=True, slots=True)
class KnownSize:
    """What this process knows of a volume. Sizes are in nano-units of a byte."""

    size: int = 0  # that it has on the node; 0: unknown
    has_failed: bool = False  # a growth has failed for good
    is_in_use: bool = False  # its driver refuses to let it grow while it is in use


@dataclass(frozen=True, slots=True)
class Growth:
    """A volume has to grow on the node."""

    size: str  # the wanted quantity
    recovers: bool = False  # the claim says how far a resize is: report to it
    is_claimed: bool = False  # the claim has the size already: another node has reported it
    is_infeasible_on_failure: bool = False  # let the controller go on with another size

    @property
    def amount(self) -> int:
        return parse_quantity(self.size)


@dataclass(frozen=True, slots=True)
class SizeReached:
    """Nothing is left to do on the node for this size."""

    size: int  # nano-units


def plan_growth(
    claim: PersistentVolumeClaim,
    volume: PersistentVolume,
    known: KnownSize,
    *,
    is_mounting: bool,
) -> Growth | SizeReached | None:
    """Decide whether a volume has to grow; None: not now.

    Args:
        claim: the claim, as the API server has it.
        volume: its persistent volume.
        known: what this process knows of the volume.
        is_mounting: whether it is being set up, so that only the claim shows its size.
    """
    wanted = _storage(volume.spec.capacity if volume.spec is not None else None)
    status, resize, allocated = _status_of(claim)
    has = _amount(status)
    before = has if is_mounting else known.size
    if not wanted or before >= _amount(wanted):
        return None
    if not is_mounting and (known.is_in_use or not known.size):
        return None
    if not resize and allocated is None:  # a resizer without recovery (checkForRecovery...)
        return Growth(wanted, is_claimed=has >= _amount(wanted))
    size = _storage(allocated)
    if not _amount(size):
        return None  # the controller has not said yet how large it is
    is_claimed = has >= _amount(size) and not resize
    request = _storage(_requests(claim))
    fails = known.has_failed and _amount(request) != _amount(size)
    # Each node has to let a volume of several nodes grow, also after the first one has.
    if is_claimed and _is_for_many(claim) and not _has_annotation(claim, _NOT_REQUIRED):
        return Growth(size, recovers=True, is_claimed=True, is_infeasible_on_failure=fails)
    if resize in (_PENDING, _IN_PROGRESS):
        return Growth(size, recovers=True, is_infeasible_on_failure=fails)
    return SizeReached(_amount(size)) if is_claimed else None


def progress_patch(claim: PersistentVolumeClaim) -> dict[str, Any]:
    """Return the patch that says that the node is at work (MarkNodeExpansionInProgress)."""
    return _checked(claim, {"allocatedResourceStatuses": {_STORAGE: _IN_PROGRESS}})


def finished_patch(claim: PersistentVolumeClaim, size: str) -> dict[str, Any]:
    """Return the patch that reports a size as reached (MarkFSResizeFinished)."""
    status: dict[str, Any] = {"capacity": {_STORAGE: size}}
    if _statuses(claim):
        status["allocatedResourceStatuses"] = {_STORAGE: None}
    gone = [c.type for c in _conditions(claim) if c.type in _CONDITIONS]
    if gone:
        status["conditions"] = [{"$patch": "delete", "type": kind} for kind in gone]
    return _checked(claim, status)


def failed_patch(
    claim: PersistentVolumeClaim, text: str, now: str, *, is_infeasible: bool
) -> dict[str, Any]:
    """Return the patch that reports a failure; empty if the claim has it already.

    MarkNodeExpansionInfeasible and MarkNodeExpansionFailedCondition.
    """
    status: dict[str, Any] = {}
    if is_infeasible:
        status["allocatedResourceStatuses"] = {_STORAGE: _INFEASIBLE}
    # As upstream: a condition that is there keeps its message.
    if not any(c.type == _ERROR and c.status == "True" for c in _conditions(claim)):
        message = f"failed to expand pvc with {text}"
        status["conditions"] = [
            {"type": _ERROR, "status": "True", "lastTransitionTime": now, "message": message}
        ]
    return {"status": status} if status else {}


@dataclass(slots=True)
class _State:
    """What is known of a volume, and when it may be tried again."""

    known: KnownSize = field(default_factory=KnownSize)
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_DELAY, _LONGEST_DELAY))
    next_at: float = 0.0  # trio time
    users: set[str] = field(default_factory=set)  # UIDs of pods


@dataclass(slots=True)
class VolumeGrowth:
    """Lets volumes grow, while they are mounted and before their first use."""

    events: EventSink
    now: Callable[[], float]  # Unix seconds
    claims: ClaimStatus = field(default_factory=NoClaimStatus)
    _states: dict[str, _State] = field(default_factory=dict)  # by persistent volume
    # (UID, name) of volumes that were set up, and that have not reached their size since.
    _unused: set[tuple[str, str]] = field(default_factory=set)

    async def before_use(self, spec: VolumeSpec, plugin: GrowingPlugin, *, is_new: bool) -> None:
        """Let a volume grow that has been set up for a pod, before its containers use it.

        Args:
            spec: the volume.
            plugin: its plugin.
            is_new: whether it has just been set up; a repeated set-up changes nothing, unless
                the growth of the first one has failed.

        Raises `GrowthError` or `ObjectError`: the pod may not use it yet.
        """
        key = spec.uid, spec.disk_name
        if is_new:
            self._unused.add(key)
        if key in self._unused:
            await self._before_use(spec, plugin)
            self._unused.discard(key)

    async def _before_use(self, spec: VolumeSpec, plugin: GrowingPlugin) -> None:
        found = self._found(spec)
        if found is None:
            return
        claim, volume, state = found
        plan = plan_growth(claim, volume, state.known, is_mounting=True)
        if plan is not None and spec.read_only:
            # Of a document nobody knows whether the volume has its size already.
            if not is_document(claim):
                self._tell_read_only(spec, claim)
        elif isinstance(plan, Growth):
            await self._grow(spec, plugin, claim, plan, state)
        state.known = _seen(state.known, claim, volume)

    async def while_mounted(
        self,
        spec: VolumeSpec,
        plugin: GrowingPlugin,
        measured: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Let a mounted volume grow, unless it failed too recently. A failure is an event.

        Args:
            spec: the volume.
            plugin: its plugin.
            measured: measures an attempt.
        """
        found = self._found(spec)
        if found is None or spec.read_only:
            return
        claim, volume, state = found
        state.known = _seen(state.known, claim, volume)
        plan = plan_growth(claim, volume, state.known, is_mounting=False)
        if isinstance(plan, SizeReached):
            state.known = KnownSize(plan.size)
        if not isinstance(plan, Growth) or trio.current_time() < state.next_at:
            return
        try:
            with measured():
                await self._grow(spec, plugin, claim, plan, state)
        except (GrowthError, ObjectError) as exc:
            state.next_at = trio.current_time() + state.backoff.next_delay()
            text = f'NodeExpandVolume.NodeExpandVolume failed for volume "{spec.disk_name}" : {exc}'
            log.warning("volume.growth_failed", volume=spec.disk_name, error=str(exc))
            self.events.emit(pod_object_ref(spec.pod), "Warning", "VolumeResizeFailed", text)
        else:
            state.backoff.reset()

    def forget(self, uid: str) -> None:
        """Forget a pod whose volumes are torn down, and volumes that no other pod has."""
        self._unused = {key for key in self._unused if key[0] != uid}
        for name, state in list(self._states.items()):
            state.users.discard(uid)
            if not state.users:
                del self._states[name]

    def _found(
        self, spec: VolumeSpec
    ) -> tuple[PersistentVolumeClaim, PersistentVolume, _State] | None:
        if spec.claim is None or spec.persistent is None:
            return None
        state = self._states.setdefault(spec.disk_name, _State())
        state.users.add(spec.uid)
        return spec.claim, spec.persistent, state

    async def _grow(
        self,
        spec: VolumeSpec,
        plugin: GrowingPlugin,
        claim: PersistentVolumeClaim,
        plan: Growth,
        state: _State,
    ) -> None:
        """Have the plugin do it, and report. Raises `GrowthError`, `ObjectError`."""
        if plan.recovers and not plan.is_claimed:
            claim = await self.claims.patch(claim, progress_patch(claim))
        failure: GrowthError | None = None
        try:
            await plugin.grow(spec, to_units(plan.amount))
        except GrowthError as exc:
            failure = exc  # reported below: an await here would lose it when cancelled
        if failure is not None:
            if await self._is_over(claim, plan, state, failure):
                return
            failure.step = "MapVolume.MarkVolumeAsMounted" if spec.is_block else "MountVolume.Setup"
            raise failure
        if not is_document(claim):
            self._tell_success(spec, claim)
            if not plan.is_claimed:
                await self.claims.patch(claim, finished_patch(claim, plan.size))
        # Last: with a claim that could not be told, all of it is tried again.
        state.known = KnownSize(plan.amount)

    async def _is_over(
        self, claim: PersistentVolumeClaim, plan: Growth, state: _State, exc: GrowthError
    ) -> bool:
        """Report a failure; return whether it ends the matter on this node."""
        problem = exc.problem
        if problem is GrowthProblem.GONE:
            log.info("volume.growth_too_late", error=str(exc))
            return True
        # A driver that does not grow volumes on nodes has nothing left to do here.
        if problem is GrowthProblem.UNSUPPORTED and (plan.is_claimed or not plan.recovers):
            state.known = KnownSize(plan.amount)
            return True
        if plan.recovers and problem is not GrowthProblem.UNCERTAIN:
            state.known = KnownSize(state.known.size, has_failed=True)
            infeasible = problem is GrowthProblem.INFEASIBLE or plan.is_infeasible_on_failure
            await self._report(claim, str(exc), is_infeasible=infeasible)
        if problem is GrowthProblem.IN_USE:
            log.warning("volume.growth_refused", error=str(exc))
            state.known = KnownSize(
                state.known.size, has_failed=state.known.has_failed, is_in_use=True
            )
            return True
        return False

    async def _report(
        self, claim: PersistentVolumeClaim, text: str, *, is_infeasible: bool
    ) -> None:
        body = failed_patch(claim, text, rfc3339(self.now()), is_infeasible=is_infeasible)
        if not body:
            return
        try:
            await self.claims.patch(claim, body)
        except ObjectError as exc:
            # The failure itself is what the caller tells; the next attempt reports again.
            log.warning("volume.growth_unreported", error=str(exc))

    def _tell_success(self, spec: VolumeSpec, claim: PersistentVolumeClaim) -> None:
        node = spec.pod.spec.nodeName if spec.pod.spec is not None else ""
        text = f'MountVolume.NodeExpandVolume succeeded for volume "{spec.disk_name}" {node or ""}'
        for involved in (pod_object_ref(spec.pod), _claim_ref(claim)):
            self.events.emit(involved, "Normal", _SUCCEEDED, text)

    def _tell_read_only(self, spec: VolumeSpec, claim: PersistentVolumeClaim) -> None:
        text = (
            f'MountVolume.NodeExpandVolume failed for volume "{spec.disk_name}" '
            "requested read-only file system"
        )
        log.warning("volume.growth_refused", volume=spec.disk_name, error="it is read-only")
        for involved in (pod_object_ref(spec.pod), _claim_ref(claim)):
            self.events.emit(involved, "Warning", _FAILED, text)


def _seen(known: KnownSize, claim: PersistentVolumeClaim, volume: PersistentVolume) -> KnownSize:
    """Return what is known after a look at the claim: its size, if none is known yet."""
    if known.size:
        return known
    size = _status_of(claim)[0]
    if not size and is_document(claim):
        # A document has no status: it grows when its capacity is raised later.
        size = _storage(volume.spec.capacity if volume.spec is not None else None)
    return KnownSize(_amount(size), known.has_failed, known.is_in_use)


def _status_of(
    claim: PersistentVolumeClaim,
) -> tuple[str, str, Mapping[str, str] | None]:
    """Return a claim's capacity, the state of its resize ("": none), and what is allocated."""
    status = claim.status
    if status is None:
        return "", "", None
    return (
        _storage(status.capacity),
        (status.allocatedResourceStatuses or {}).get(_STORAGE, ""),
        status.allocatedResources,
    )


def _statuses(claim: PersistentVolumeClaim) -> Mapping[str, str]:
    return (claim.status.allocatedResourceStatuses if claim.status is not None else None) or {}


def _conditions(claim: PersistentVolumeClaim) -> Any:
    return (claim.status.conditions if claim.status is not None else None) or ()


def _requests(claim: PersistentVolumeClaim) -> Mapping[str, str] | None:
    resources = claim.spec.resources if claim.spec is not None else None
    return resources.requests if resources is not None else None


def _storage(amounts: Mapping[str, str] | None) -> str:
    return (amounts or {}).get(_STORAGE, "")


def _amount(quantity: str) -> int:
    return parse_quantity(quantity) if quantity else 0


def _is_for_many(claim: PersistentVolumeClaim) -> bool:
    modes = claim.spec.accessModes if claim.spec is not None else None
    return "ReadWriteMany" in (modes or ())


def _has_annotation(claim: PersistentVolumeClaim, name: str) -> bool:
    return claim.metadata is not None and name in (claim.metadata.annotations or {})


def claimed_size(claim: PersistentVolumeClaim | None) -> int:
    """Return the size in bytes that a claim's status reports; 0: none."""
    return to_units(_amount(_status_of(claim)[0])) if claim is not None else 0


def is_document(claim: PersistentVolumeClaim) -> bool:
    """Whether a claim is from a manifest: the API server gives every object a UID."""
    return claim.metadata is None or not claim.metadata.uid


def _checked(claim: PersistentVolumeClaim, status: dict[str, Any]) -> dict[str, Any]:
    """Return a patch that fails if the claim has changed meanwhile."""
    version = claim.metadata.resourceVersion if claim.metadata is not None else None
    return {**({"metadata": {"resourceVersion": version}} if version else {}), "status": status}


def _claim_ref(claim: PersistentVolumeClaim) -> ObjectRef:
    meta = claim.metadata or ObjectMeta()
    return ObjectRef("PersistentVolumeClaim", meta.name or "", meta.namespace or "", meta.uid or "")
