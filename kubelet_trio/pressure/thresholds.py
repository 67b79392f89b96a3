"""Eviction thresholds: parse them from the configuration, and decide which are met. Pure.

Source: pkg/kubelet/eviction/helpers.go and defaults_linux.go (1.36).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubelet_trio.durations import format_duration
from kubelet_trio.model import NANO, canonical_quantity, parse_quantity, quantity_like, to_units
from kubelet_trio.node import percent_of

MEMORY = "memory.available"
ALLOCATABLE_MEMORY = "allocatableMemory.available"
NODE_FS, NODE_INODES = "nodefs.available", "nodefs.inodesFree"
IMAGE_FS, IMAGE_INODES = "imagefs.available", "imagefs.inodesFree"
CONTAINER_FS, CONTAINER_INODES = "containerfs.available", "containerfs.inodesFree"
PID = "pid.available"

_FLOAT32_MAX = 3.4028234663852886e38

# By signal: the resource that starves, and the node's condition.
RESOURCES: Mapping[str, str] = {
    MEMORY: "memory",
    ALLOCATABLE_MEMORY: "memory",
    NODE_FS: "ephemeral-storage",
    NODE_INODES: "inodes",
    IMAGE_FS: "ephemeral-storage",
    IMAGE_INODES: "inodes",
    CONTAINER_FS: "ephemeral-storage",
    CONTAINER_INODES: "inodes",
    PID: "pids",
}
CONDITIONS: Mapping[str, str] = {
    signal: {"memory": "MemoryPressure", "pids": "PIDPressure"}.get(resource, "DiskPressure")
    for signal, resource in RESOURCES.items()
}
_COUNTS = (NODE_INODES, IMAGE_INODES, CONTAINER_INODES, PID)


def is_own_limit(signal: str) -> bool:
    """Return whether a signal tells of a limit of one pod: `emptydirfs.limit` and the like."""
    return signal not in RESOURCES


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity, or a percentage of the capacity."""

    quantity: int = 0  # bytes, or a number
    percent: float | None = None
    text: str = field(default="", compare=False)  # the quantity as configured, in canonical form

    def of(self, capacity: int) -> int:
        return self.quantity if self.percent is None else percent_of(capacity, self.percent)

    def shown(self, capacity: int) -> str:
        """Return the amount for a message: as configured, a percentage in bytes."""
        # GetThresholdQuantity makes a BinarySI quantity of a percentage, also of inodes.
        return self.text or binary_quantity(self.of(capacity))


@dataclass(frozen=True, slots=True)
class Threshold:
    """A signal, and the amount below which the threshold is met."""

    signal: str
    value: Amount
    grace: float | None = None  # seconds; None: a hard threshold
    min_reclaim: Amount | None = None

    @property
    def resource(self) -> str:
        return RESOURCES[self.signal]

    @property
    def is_hard(self) -> bool:
        # A soft threshold without a grace period is a hard one (isHardEvictionThreshold).
        return not self.grace


@dataclass(frozen=True, slots=True)
class Observation:
    """The available amount of a signal's resource, and its capacity."""

    available: int
    capacity: int

    def shown(self, signal: str) -> str:
        """Return the available amount for a message: bytes are binary, counts decimal."""
        return (count_quantity if signal in _COUNTS else binary_quantity)(self.available)


Observations = Mapping[str, Observation]


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """The eviction settings. Without thresholds no pod is evicted for pressure."""

    thresholds: tuple[Threshold, ...] = ()
    transition_period: float = 300.0  # seconds that a condition outlasts its cause
    max_pod_grace: int = 0  # seconds, for soft thresholds
    kernel_notification: bool = False  # also react to notifications of the kernel
    local_storage: bool = False  # enforce limits of emptyDir and ephemeral-storage

    @property
    def is_off(self) -> bool:
        return not self.thresholds and not self.local_storage


def parse_thresholds(
    hard: Mapping[str, str],
    soft: Mapping[str, str] | None = None,
    soft_grace: Mapping[str, float] | None = None,
    min_reclaim: Mapping[str, str] | None = None,
    *,
    enforces_pods: bool = False,
) -> tuple[Threshold, ...]:
    """Return the thresholds of a configuration. Raises ValueError with a text for the user.

    Args:
        hard: evictionHard.
        soft: evictionSoft.
        soft_grace: evictionSoftGracePeriod, in seconds.
        min_reclaim: evictionMinimumReclaim.
        enforces_pods: whether the pods' cgroup has a limit, so that its memory is a signal too.
    """
    graces = {_known(signal): grace for signal, grace in (soft_grace or {}).items()}
    for grace in graces.values():
        if grace < 0:
            raise ValueError(
                f"invalid eviction grace period specified: {format_duration(grace)}, "
                "must be a positive value"
            )
    reclaims = {_known(s): _parse_reclaim(s, text) for s, text in (min_reclaim or {}).items()}
    found = [_parse(signal, text) for signal, text in hard.items()]
    for signal, text in (soft or {}).items():
        threshold = _parse(signal, text)
        if threshold is None:
            continue
        if signal not in graces:
            raise ValueError(
                f"grace period must be specified for the soft eviction threshold {signal}"
            )
        found.append(replace(threshold, grace=graces[signal]))
    thresholds = [replace(t, min_reclaim=reclaims.get(t.signal)) for t in found if t is not None]
    # As addAllocatableThresholds: copies of the hard memory thresholds, not of the soft ones.
    if enforces_pods:
        thresholds += [
            replace(t, signal=ALLOCATABLE_MEMORY)
            for t in thresholds
            if t.signal == MEMORY and t.is_hard
        ]
    return tuple(thresholds)


def _known(signal: str) -> str:
    if signal not in RESOURCES:
        raise ValueError(f"unsupported eviction signal {signal}")
    return signal


def _parse(signal: str, text: str) -> Threshold | None:
    """Return a threshold; None for `0%` and `100%`, which disable a signal."""
    _known(signal)
    if text.endswith("%"):
        percent = _percent(text)
        if percent in (0, 100):
            return None
        if percent < 0:
            raise ValueError(f"eviction percentage threshold {signal} must be >= 0%: {text}")
        if percent > 100:
            raise ValueError(f"eviction percentage threshold {signal} must be <= 100%: {text}")
        return Threshold(signal, Amount(percent=percent))
    quantity = to_units(parse_quantity(text))
    if quantity <= 0:
        raise ValueError(f"eviction threshold {signal} must be positive: {text}")
    return Threshold(signal, Amount(quantity, text=canonical_quantity(text)))


def _parse_reclaim(signal: str, text: str) -> Amount:
    if text.endswith("%"):
        percent = _percent(text)
        if percent <= 0:
            raise ValueError(
                f"eviction percentage minimum reclaim {signal} must be positive: {text}"
            )
        return Amount(percent=percent)
    quantity = to_units(parse_quantity(text))
    if quantity < 0:
        raise ValueError(f"negative eviction minimum reclaim specified for {signal}")
    return Amount(quantity)


def _percent(text: str) -> float:
    percent = float(text.removesuffix("%"))
    # The node counts with 32 bits (`percent_of`). Also false for NaN.
    if not -_FLOAT32_MAX <= percent <= _FLOAT32_MAX:
        raise ValueError(f"{text!r} is not a percentage")
    return percent


def binary_quantity(count: int) -> str:
    """Format bytes as the API does: `100Mi`; plain if no suffix divides them."""
    return quantity_like(count * NANO, "1Ki")


def count_quantity(count: int) -> str:
    """Format a number as the API does: `123k`; plain if no suffix divides it."""
    return quantity_like(count * NANO, "1")


def with_container_fs(
    thresholds: Iterable[Threshold], *, dedicated: bool, split: bool
) -> tuple[Threshold, ...]:
    """Add the thresholds of the containers' file system, which cannot be configured.

    They are the thresholds of the file system that holds the writable layers: the images' or the
    node's.

    Args:
        thresholds: as configured.
        dedicated: images have a file system of their own.
        split: containers' writable layers are not on it.
    """
    # As UpdateContainerFsThresholds: configured ones are ignored.
    own = [t for t in thresholds if t.signal not in (CONTAINER_FS, CONTAINER_INODES)]
    space, inodes = (IMAGE_FS, IMAGE_INODES) if dedicated and not split else (NODE_FS, NODE_INODES)
    names = {space: CONTAINER_FS, inodes: CONTAINER_INODES}
    return (*own, *(replace(t, signal=names[t.signal]) for t in own if t.signal in names))


def met(
    thresholds: Iterable[Threshold], observed: Observations, *, with_reclaim: bool = False
) -> list[Threshold]:
    """Return the thresholds that are met; `with_reclaim` adds the minimum reclaim to each."""
    found = []
    for threshold in thresholds:
        seen = observed.get(threshold.signal)
        if seen is None:
            continue
        limit = threshold.value.of(seen.capacity)
        if with_reclaim and threshold.min_reclaim is not None:
            limit += threshold.min_reclaim.of(seen.capacity)
        if seen.available < limit:
            found.append(threshold)
    return found


def memory_limits(thresholds: Iterable[Threshold], observed: Observations) -> dict[str, int]:
    """Return the bytes of the highest threshold of each memory signal."""
    found: dict[str, int] = {}
    for threshold in thresholds:
        signal, seen = threshold.signal, observed.get(threshold.signal)
        if signal in (MEMORY, ALLOCATABLE_MEMORY) and seen is not None:
            found[signal] = max(found.get(signal, 0), threshold.value.of(seen.capacity))
    return found


@dataclass(frozen=True, slots=True)
class PressureState:
    """The state between observations. Times are seconds of a monotonic clock."""

    first_met: Mapping[Threshold, float] = field(default_factory=dict)
    acted_on: tuple[Threshold, ...] = ()  # met for their grace period, and not yet resolved
    last_seen: Mapping[str, float] = field(default_factory=dict)  # by condition
    conditions: tuple[str, ...] = ()

    def next(
        self,
        thresholds: Sequence[Threshold],
        observed: Observations,
        now: float,
        transition_period: float,
    ) -> PressureState:
        """Return the next state; its `acted_on` are the thresholds to act on, memory first."""
        current = met(thresholds, observed)
        # A threshold that was acted on stays met until its minimum reclaim is available too.
        unresolved = met(self.acted_on, observed, with_reclaim=True)
        current += [t for t in unresolved if t not in current]
        first_met = {t: self.first_met.get(t, now) for t in current}
        seen = {**self.last_seen, **{CONDITIONS[t.signal]: now for t in current}}
        # `at == now`: even with a transition period of 0 a condition lasts while it is met.
        last_seen = {c: at for c, at in seen.items() if now - at < transition_period or at == now}
        due = [t for t, since in first_met.items() if now - since >= (t.grace or 0.0)]
        due.sort(key=lambda t: t.resource != "memory")  # Go's byEvictionPriority
        return PressureState(first_met, tuple(due), last_seen, tuple(sorted(last_seen)))


def pressure_message(conditions: Sequence[str]) -> str:
    """Return the message for a pod that is not admitted."""
    return f"The node had condition: [{' '.join(conditions)}]. "


def rejects(
    conditions: Sequence[str],
    *,
    is_critical: Callable[[], bool],
    is_best_effort: Callable[[], bool],
    tolerates_memory: Callable[[], bool],
) -> bool:
    """Whether a pod is not admitted while the node has these conditions."""
    # The node needs its critical pods even under pressure: kubernetes/kubernetes#40573.
    if not conditions or is_critical():
        return False
    # As upstream: memory pressure alone keeps out only best-effort pods, other conditions all.
    if tuple(conditions) == ("MemoryPressure",):
        return is_best_effort() and not tolerates_memory()
    return True
