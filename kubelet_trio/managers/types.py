"""What the managers share: the machine, hints of locality, refusals.

Sets of NUMA nodes are bit masks (node 3 is `1 << 3`), as in upstream's topology manager: merging
hints of a machine with eight nodes compares thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.model import PodUid

S = TypeVar("S")


@dataclass(frozen=True, slots=True, order=True)
class Cpu:
    """One online logical CPU (a hardware thread), and where it is.

    Attributes:
        id: its number, as in cpuset.cpus.
        core: the physical core, unique on the machine.
        cache: the group that shares a last-level ("uncore") cache, unique on the machine.
        node: the NUMA node.
        package: the socket.
        die: the die, unique on the machine.
    """

    id: int
    core: int
    cache: int
    node: int
    package: int
    die: int = 0


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node.

    Attributes:
        id: its number.
        cpus: its online CPUs; empty for a node with memory only.
        memory: bytes of memory; 0 for a node without.
        huge_pages: page size in bytes to the number of pages.
        distances: to the nodes of the machine, in the order of `Machine.nodes`; its own is 10.
    """

    id: int
    cpus: frozenset[int]
    memory: int
    huge_pages: Mapping[int, int] = field(default_factory=dict)
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's CPUs and memory.

    Attributes:
        cpus: the online CPUs, ascending by ID.
        nodes: the NUMA nodes, ascending by ID; one node where the machine names none.
        isolated: CPUs that the kernel keeps from its scheduler (isolcpus=).
        offline: CPUs that are present but off.
    """

    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]
    isolated: frozenset[int] = frozenset()
    offline: frozenset[int] = frozenset()

    @property
    def all_nodes(self) -> int:
        """The mask of all NUMA nodes."""
        return mask_of(node.id for node in self.nodes)


class Hint(NamedTuple):
    """One way to place a request, as TopologyHint of upstream's topology manager.

    Attributes:
        nodes: the mask of NUMA nodes; None: any.
        preferred: whether no narrower placement of this request is possible on the machine.
    """

    nodes: int | None
    preferred: bool


ANYWHERE = Hint(None, preferred=True)

# Resource name to the ways to place it. None: no preference; (): there is no way to place it.
Hints = Mapping[str, tuple[Hint, ...] | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod is not admitted: a reason as its status shows it, and a message."""

    reason: str
    message: str


class Manager(Protocol[S]):
    """One manager's rules: pure functions of its immutable state `S`.

    Admission asks for hints, merges those of all managers, and allocates container by container.
    It takes over the states that it was given only if no manager refuses.
    """

    def hints(self, state: S, pod: Pod, container: Container) -> Hints:
        """Return the ways to place what a container asks for; {} if it asks for nothing here.

        A container that already has its share gets the one hint that describes it.
        """
        ...

    def pod_hints(self, state: S, pod: Pod) -> Hints:
        """Return the ways to place a whole pod (topologyManagerScope: pod)."""
        ...

    def allocate(self, state: S, pod: Pod, container: Container, affinity: Hint) -> S | Refusal:
        """Return the state with a container's share; the same state if it needs none, or has it."""
        ...

    def release(self, state: S, uid: PodUid) -> S:
        """Return the state without the shares of a pod."""
        ...


def mask_of(nodes: Iterable[int]) -> int:
    """Return the mask of NUMA nodes."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


def nodes_of(mask: int) -> Iterator[int]:
    """Yield the NUMA nodes of a mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
