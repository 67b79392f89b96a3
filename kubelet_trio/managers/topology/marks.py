"""The signs of a machine's drawing: a letter for each container, and signs for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from string import ascii_letters, ascii_uppercase

from kubelet_trio.managers.topology.holdings import ContainerHoldings, MachineHoldings
from kubelet_trio.managers.topology.ink import DIM, PLAIN, Glyphs
from kubelet_trio.managers.types import Machine

# Backgrounds of the 256 colours that black text is readable on; neighbours differ.
_PALETTE = (75, 215, 114, 176, 222, 80, 204, 150, 147, 187, 73, 180)
_RESERVED = "48;5;240;38;5;255"
_ISOLATED = "35"
_ALARM = "1;31"


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign, its colour, and what it means."""

    sign: str
    codes: str = PLAIN
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one machine.

    Attributes:
        width: characters of the widest sign.
        cpus: by CPU, the online ones.
        containers: by the place in `MachineHoldings.containers`.
        devices: by resource and ID, those that a container has.
    """

    width: int
    free: Mark
    reserved: Mark
    isolated: Mark
    offline: Mark
    unknown: Mark
    broken: Mark
    cpus: Mapping[int, Mark]
    containers: tuple[Mark, ...]
    devices: Mapping[tuple[str, str], Mark]


def marks_of(machine: Machine, holdings: MachineHoldings, glyphs: Glyphs, *, known: bool) -> Marks:
    """Return the marks. `known` is False where no agent says who has the CPUs."""
    signs = _signs(len(holdings.containers))
    containers = tuple(
        Mark(sign, f"30;48;5;{_PALETTE[at % len(_PALETTE)]}") for at, sign in enumerate(signs)
    )
    free = Mark(glyphs.free, DIM, "shared" if known else "online")
    reserved = Mark(glyphs.reserved, _RESERVED, "reserved")
    isolated = Mark(glyphs.isolated, _ISOLATED, "isolated")
    unknown = Mark(glyphs.unknown, _ALARM, "unassigned")
    cpus: dict[int, Mark] = {}
    for cpu in machine.cpus:
        if cpu.id in holdings.reserved:
            cpus[cpu.id] = reserved
        elif cpu.id in machine.isolated:
            cpus[cpu.id] = isolated
        elif not known or cpu.id in holdings.shared:
            cpus[cpu.id] = free
        else:
            cpus[cpu.id] = unknown
    devices: dict[tuple[str, str], Mark] = {}
    for mark, container in zip(containers, holdings.containers, strict=True):
        cpus.update((cpu, mark) for cpu in container.cpus if cpu in cpus)
        for resource, ids in container.devices.items():
            devices.update(((resource, each), mark) for each in ids)
    return Marks(
        max(map(len, signs), default=1),
        free,
        reserved,
        isolated,
        Mark(glyphs.offline, _ALARM, "offline"),
        unknown,
        Mark(glyphs.broken, _ALARM, "unhealthy"),
        cpus,
        containers,
        devices,
    )


def by_place(containers: tuple[ContainerHoldings, ...]) -> tuple[ContainerHoldings, ...]:
    """Return containers in the order of their CPUs, so that letters run through the machine.

    Those of one pod that share a CPU stay in their order.
    """

    def place(container: ContainerHoldings) -> tuple[int, int]:
        memory = min((held.nodes for held in container.memory), default=0)
        return min(container.cpus, default=1 << 20), memory

    return tuple(sorted(containers, key=place))


def _signs(count: int) -> list[str]:
    """Return signs of one letter, or of two for more containers than letters."""

    def pairs() -> Iterator[str]:
        for size in (2, 3, 4):
            yield from map("".join, product(ascii_uppercase, repeat=size))

    if count <= len(ascii_letters):
        return list(ascii_letters.swapcase()[:count])
    return [sign for sign, _ in zip(pairs(), range(count), strict=False)]
