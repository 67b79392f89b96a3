"""The node's capacity, the reserved part, and what is left for pods.

`node_capacity` alone decides this. Registration reports `capacity` and `allocatable`, admission
compares pods with `allocatable`, and the top cgroup is limited to `enforceable`. Amounts are
integers in nano-units by resource name.

    capacity      the machine: cpu, memory, ephemeral-storage, hugepages-<size>, pods
    allocatable   capacity minus systemReserved, kubeReserved and the hard eviction
                  thresholds; memory also minus all huge pages, which are part of it
    enforceable   capacity minus systemReserved and kubeReserved only, with `pid`: a cgroup
                  limit at the eviction threshold would kill before eviction could act

Rules: GetNodeAllocatableReservation and getNodeAllocatableInternalAbsolute of
pkg/kubelet/cm, MachineInfo of pkg/kubelet/nodestatus, hardEvictionReservation.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from kubelet_trio.model import DEFAULT_EVICTION_HARD, NANO, parse_quantity
from kubelet_trio.node.machine import Machine

Amounts = Mapping[str, int]  # nano-units by resource name

PID = "pid"
HUGEPAGES = "hugepages-"
DEFAULT_MAX_PODS = 110
# The signals whose thresholds reduce `allocatable`, and the resource.
_EVICTION_RESOURCES = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}
_NO_THRESHOLD = (None, "0%", "100%")  # the latter two turn a signal off
_RESERVABLE = ("cpu", "memory", "ephemeral-storage", PID)


@dataclass(frozen=True, slots=True)
class Reservations:
    """Reserved amounts in nano-units, and eviction thresholds by signal (`100Mi`, `10%`)."""

    system: Amounts = field(default_factory=dict)
    kube: Amounts = field(default_factory=dict)
    eviction_hard: Mapping[str, str] = field(default_factory=lambda: DEFAULT_EVICTION_HARD)


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The result of `node_capacity`; the module docstring explains the parts."""

    capacity: Amounts
    allocatable: Amounts
    enforceable: Amounts
    internal: Amounts  # capacity with `pid` and without `pods`: what a cgroup can limit


class ReservationError(ValueError):
    """More is reserved than the node has, or a resource that cannot be reserved."""


def node_capacity(
    machine: Machine,
    reserved: Reservations | None = None,
    *,
    max_pods: int = DEFAULT_MAX_PODS,
    pods_per_core: int = 0,
    local_storage: bool = True,
) -> NodeCapacity:
    """Return the node's capacity and the parts of it.

    `local_storage` is `localStorageCapacityIsolation`: without it there is no ephemeral-storage.

    Raises `ReservationError` naming every resource of which more is reserved than the node has.
    """
    reserved = reserved or Reservations()
    resources = {
        "cpu": machine.cpus * NANO,
        "memory": machine.memory * NANO,
        **(
            {"ephemeral-storage": machine.storage * NANO}
            if machine.storage and local_storage
            else {}
        ),
        **{HUGEPAGES + size: amount * NANO for size, amount in machine.hugepages.items()},
    }
    kept = _daemons(reserved)
    whole = reserved_amounts(reserved, resources)
    _check(resources, whole)
    pods = min(max_pods, pods_per_core * machine.cpus) if pods_per_core else max_pods
    allocatable = {n: max(amount - whole[n], 0) for n, amount in resources.items()}
    huge = sum(amount for n, amount in allocatable.items() if n.startswith(HUGEPAGES))
    # MemTotal includes the huge pages, and other memory cannot use them.
    allocatable["memory"] = max(allocatable["memory"] - huge, 0)
    inner = {**resources, **({PID: machine.max_pids * NANO} if machine.max_pids else {})}
    return NodeCapacity(
        capacity={**resources, "pods": pods * NANO},
        allocatable={**allocatable, "pods": pods * NANO},
        internal=inner,
        enforceable={n: max(amount - kept.get(n, 0), 0) for n, amount in inner.items()},
    )


def reserved_amounts(reserved: Reservations, capacity: Amounts) -> dict[str, int]:
    """Return how much of each resource of the capacity is kept from pods.

    This is systemReserved, kubeReserved and the hard eviction thresholds, together
    (GetNodeAllocatableReservation).
    """
    kept = _daemons(reserved)
    return {n: kept.get(n, 0) + _evicted(n, amount, reserved) for n, amount in capacity.items()}


def parse_reservation(field_name: str, given: Mapping[str, str]) -> dict[str, int]:
    """Return `systemReserved` or `kubeReserved` in nano-units. Raises `ReservationError`."""
    found = {}
    for name, text in given.items():
        if name not in _RESERVABLE:
            raise ReservationError(
                f"{field_name}: cannot reserve {name!r} resource; expected one of "
                + ", ".join(_RESERVABLE)
            )
        try:
            found[name] = parse_quantity(text)
        except ValueError as exc:
            raise ReservationError(f"{field_name}: {name}: {exc}") from exc
        if found[name] < 0:
            raise ReservationError(
                f"{field_name}: resource quantity for {name!r} cannot be negative: {text}"
            )
    return found


def with_reserved_cpus(reserved: Reservations, cpus: int) -> Reservations:
    """Return the reservations with the number of CPUs that `reservedSystemCPUs` names.

    They replace every other reservation of CPU.
    """
    if not cpus:
        return reserved
    kube = {n: amount for n, amount in reserved.kube.items() if n != "cpu"}
    return Reservations({**reserved.system, "cpu": cpus * NANO}, kube, reserved.eviction_hard)


def threshold_amount(threshold: str, capacity: int) -> int:
    """Return a threshold in nano-units; a percentage of `capacity` is rounded down to units."""
    if threshold.endswith("%"):
        return percent_of(capacity // NANO, float(threshold[:-1])) * NANO
    return parse_quantity(threshold)


def percent_of(capacity: int, percent: float) -> int:
    """Return a percentage of whole units as the Go kubelet counts it, to the byte."""
    # ThresholdValue keeps the share with 32 bits, and GetThresholdQuantity multiplies with 64 and
    # rounds down: 10% of 100Gi is 160 bytes more than a tenth.
    return int(capacity * _float32(_float32(percent) / 100))


def _float32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


def _daemons(reserved: Reservations) -> dict[str, int]:
    names = {**reserved.system, **reserved.kube}
    return {n: reserved.system.get(n, 0) + reserved.kube.get(n, 0) for n in names}


def _evicted(name: str, capacity: int, reserved: Reservations) -> int:
    signals = [s for s, resource in _EVICTION_RESOURCES.items() if resource == name]
    return sum(
        threshold_amount(reserved.eviction_hard[s], capacity)
        for s in signals
        if reserved.eviction_hard.get(s) not in _NO_THRESHOLD
    )


def _check(capacity: Amounts, reserved: Amounts) -> None:
    problems = [
        f'Resource "{name}" has a reservation of {_shown(name, reserved[name])} but capacity '
        f"of {_shown(name, amount)}. Expected capacity >= reservation."
        for name, amount in capacity.items()
        if reserved[name] > amount
    ]
    if problems:
        raise ReservationError(f"invalid Node Allocatable configuration. {' '.join(problems)}")


def _shown(name: str, amount: int) -> str:
    return f"{-(-amount * 1000 // NANO)}m" if name == "cpu" else str(-(-amount // NANO))
