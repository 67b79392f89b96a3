"""What the node has, what of it is kept back, and what is left for pods.

`node_capacity` is the one place where that is decided. Registration reports its `capacity`
and `allocatable`, admission measures pods against `allocatable`, the top cgroup is limited
to `enforceable`. Amounts are integers in nano-units by resource name, as everywhere.

    capacity      the machine: cpu, memory, ephemeral-storage, hugepages-<size>, pods
    allocatable   capacity less systemReserved, kubeReserved and the hard eviction
                  thresholds; memory also less all huge pages, which are taken out of it
    enforceable   capacity less systemReserved and kubeReserved alone, with `pid`: a cgroup
                  limit at the eviction threshold would kill before eviction could act

Rules: GetNodeAllocatableReservation and getNodeAllocatableInternalAbsolute of
pkg/kubelet/cm, MachineInfo of pkg/kubelet/nodestatus, hardEvictionReservation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kubelet_trio.model import NANO, parse_quantity

Amounts = Mapping[str, int]  # nano-units by resource name

PID = "pid"
HUGEPAGES = "hugepages-"
DEFAULT_MAX_PODS = 110
# evictionHard where nobody sets it, on Linux.
DEFAULT_EVICTION_HARD: Mapping[str, str] = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
# The signals whose thresholds are kept back from pods, and of which resource.
_EVICTION_RESOURCES = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}
_NO_THRESHOLD = (None, "0%", "100%")  # the latter two turn a signal off
_RESERVABLE = ("cpu", "memory", "ephemeral-storage", PID)
_LAST_CPU = (1 << 16) - 1  # far beyond the 8,192 that Linux can be built for


@dataclass(frozen=True, slots=True)
class Machine:
    """What is there, whoever uses it."""

    cpus: int
    memory: int  # bytes
    swap: int = 0  # bytes
    hugepages: Mapping[str, int] = field(default_factory=dict)  # bytes by size: 2Mi, 1Gi
    storage: int = 0  # bytes of the file system that the pods' directories are on
    max_pids: int = 0  # 0: not known


@dataclass(frozen=True, slots=True)
class Reservations:
    """What is kept from pods, in nano-units, and thresholds by signal (`100Mi`, `10%`)."""

    system: Amounts = field(default_factory=dict)
    kube: Amounts = field(default_factory=dict)
    eviction_hard: Mapping[str, str] = field(default_factory=lambda: DEFAULT_EVICTION_HARD)


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """See the module."""

    capacity: Amounts
    allocatable: Amounts
    enforceable: Amounts
    internal: Amounts  # capacity with `pid`, and without `pods`: what cgroups can be limited to


class ReservationError(ValueError):
    """More is kept back than there is, or something that cannot be kept back."""


def node_capacity(
    machine: Machine,
    reserved: Reservations | None = None,
    *,
    max_pods: int = DEFAULT_MAX_PODS,
    pods_per_core: int = 0,
    local_storage: bool = True,
) -> NodeCapacity:
    """Return what the node has and what pods may have of it.

    `local_storage` is `localStorageCapacityIsolation`: without it disk is no resource.

    Raises `ReservationError` naming every resource of which more is reserved than there is.
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
    whole = {n: kept.get(n, 0) + _evicted(n, amount, reserved) for n, amount in resources.items()}
    _check(resources, whole)
    pods = min(max_pods, pods_per_core * machine.cpus) if pods_per_core else max_pods
    allocatable = {n: max(amount - whole[n], 0) for n, amount in resources.items()}
    huge = sum(amount for n, amount in allocatable.items() if n.startswith(HUGEPAGES))
    allocatable["memory"] = max(allocatable["memory"] - huge, 0)
    inner = {**resources, **({PID: machine.max_pids * NANO} if machine.max_pids else {})}
    return NodeCapacity(
        capacity={**resources, "pods": pods * NANO},
        allocatable={**allocatable, "pods": pods * NANO},
        internal=inner,
        enforceable={n: max(amount - kept.get(n, 0), 0) for n, amount in inner.items()},
    )


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
    """Return the reservations where `reservedSystemCPUs` names that many CPUs.

    They count as the system's, and whatever else was said of CPU does not.
    """
    if not cpus:
        return reserved
    kube = {n: amount for n, amount in reserved.kube.items() if n != "cpu"}
    return Reservations({**reserved.system, "cpu": cpus * NANO}, kube, reserved.eviction_hard)


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as `0-3,8`. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{text!r} is not a list of CPUs such as 0-3,8")
        first, last = int(match[1]), int(match[2] or match[1])
        if last > _LAST_CPU:
            raise ValueError(f"{part!r}: no machine has a CPU above {_LAST_CPU}")
        found.update(range(first, last + 1))
    return frozenset(found)


def threshold_amount(threshold: str, capacity: int) -> int:
    """Return a threshold of a capacity, both in nano-units; `10%` is rounded down to units."""
    if threshold.endswith("%"):
        return int(capacity // NANO * float(threshold[:-1]) / 100) * NANO
    return parse_quantity(threshold)


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


# The machine itself. Blocks.


def read_machine(
    root_dir: Path, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> Machine:
    """Return this machine; `root_dir` (or what is above it, so far) is on the pods' disk.

    Raises OSError.
    """
    while not root_dir.exists():
        root_dir = root_dir.parent
    disk = os.statvfs(root_dir)
    meminfo = (proc / "meminfo").read_text()
    return Machine(
        cpus=os.cpu_count() or 1,
        memory=_meminfo(meminfo, "MemTotal"),
        swap=_meminfo(meminfo, "SwapTotal"),
        hugepages=_hugepages(sys / "kernel" / "mm" / "hugepages"),
        storage=disk.f_blocks * disk.f_frsize,
        max_pids=_max_pids(proc / "sys" / "kernel"),
    )


def _meminfo(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _hugepages(directory: Path) -> dict[str, int]:
    if not directory.is_dir():
        return {}
    found = {}
    for entry in directory.iterdir():
        match = re.fullmatch(r"hugepages-(\d+)kB", entry.name)
        if match is not None:
            size = int(match[1]) * 1024
            found[size] = size * int((entry / "nr_hugepages").read_text())
    return {binary_size(size): amount for size, amount in sorted(found.items())}


def binary_size(size: int) -> str:
    """Return a page size as resource names have it: 2097152 is 2Mi."""
    for unit in ("", "Ki", "Mi"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}Gi"


def _max_pids(kernel: Path) -> int:
    """Return the most processes there can be: the smaller of the two that the kernel names."""
    limits = []
    for name in ("pid_max", "threads-max"):
        try:
            limits.append(int((kernel / name).read_text()))
        except FileNotFoundError:
            continue
    return min(limits, default=0)
