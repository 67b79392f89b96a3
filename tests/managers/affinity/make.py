"""Machines, pods and managers for tests of affinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from lightkube.models.core_v1 import Container, Pod, PodSpec
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.managers import Hint, Hints, Machine, NumaNode, Refusal, mask_of
from kubelet_trio.managers.settings import TopologyOptions
from kubelet_trio.model import PodUid

# Two sockets of two pairs: near within a pair, far between sockets; one link is slower one way.
FAR = (
    (10, 11, 12, 12, 30, 30, 30, 30),
    (11, 10, 12, 12, 30, 30, 30, 30),
    (12, 12, 10, 11, 30, 30, 30, 30),
    (12, 12, 11, 10, 30, 30, 30, 30),
    (30, 30, 30, 30, 10, 11, 12, 12),
    (30, 30, 30, 30, 11, 10, 12, 12),
    (30, 30, 30, 30, 12, 12, 10, 11),
    (30, 30, 30, 30, 12, 12, 13, 10),
)


def machine(ids: Sequence[int] = (0, 1, 2, 3), distances: Sequence[Sequence[int]] = ()) -> Machine:
    rows = [tuple(row) for row in distances] or [()] * len(ids)
    return Machine(
        (),
        tuple(NumaNode(i, frozenset(), 1, distances=row) for i, row in zip(ids, rows, strict=True)),
    )


EIGHT = machine(range(8), FAR)


def hint(text: str) -> Hint:
    """Read `0,1` as a preferred hint for nodes 0 and 1, `0,1?` as one that is not, `*` as any."""
    nodes = text.removesuffix("?")
    mask = None if nodes == "*" else mask_of(map(int, nodes.split(","))) if nodes else 0
    return Hint(mask, preferred=not text.endswith("?"))


def hints(text: str) -> tuple[Hint, ...]:
    return tuple(map(hint, text.split()))


def pod(*names: str, init: Sequence[str] = ()) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid="u-1"),
        spec=PodSpec(
            containers=[Container(name=name) for name in names],
            initContainers=[Container(name=name) for name in init],
        ),
    )


@dataclass(frozen=True)
class Book:
    """A manager that offers what it is told to; its state is the list of what it gave."""

    name: str
    offered: Mapping[str, Hints] = field(default_factory=dict)
    whole: Hints = field(default_factory=dict)
    refuses: Mapping[str, Refusal] = field(default_factory=dict)

    def hints(self, state: tuple[str, ...], pod: Pod, container: Container) -> Hints:
        return self.offered.get(container.name, {})

    def pod_hints(self, state: tuple[str, ...], pod: Pod) -> Hints:
        return self.whole

    def allocate(
        self, state: tuple[str, ...], pod: Pod, container: Container, affinity: Hint
    ) -> tuple[str, ...] | Refusal:
        if refusal := self.refuses.get(container.name):
            return refusal
        nodes = "*" if affinity.nodes is None else f"{affinity.nodes:b}"
        return (*state, f"{container.name}@{nodes}{'' if affinity.preferred else '?'}")

    def release(self, state: tuple[str, ...], uid: PodUid) -> tuple[str, ...]:
        return ()


def naive_merge(
    offers: Sequence[Sequence[Hint]], machine: Machine, options: TopologyOptions
) -> Hint:
    """Look at each choice of one hint per resource, in turn: the rule as KEP-693 words it."""
    every = machine.all_nodes
    order = [node.id for node in machine.nodes]

    def average(mask: int) -> float:
        inside = [i for i in order if mask >> i & 1]
        row = {node.id: node.distances for node in machine.nodes}
        total = sum(row[a][order.index(b)] for a in inside for b in inside)
        return total / len(inside) ** 2

    def fits_better(one: int, other: int) -> bool:
        if one.bit_count() != other.bit_count():
            return one.bit_count() < other.bit_count()
        if options.prefer_closest and average(one) != average(other):
            return average(one) < average(other)
        return one < other

    demand = max(
        (min((h.nodes.bit_count() for h in o if h.nodes is not None), default=0) for o in offers),
        default=0,
    )
    best: Hint | None = None
    for choice in product(*offers):
        named = [h.nodes for h in choice if h.nodes is not None]
        mask = every
        for each in named:
            mask &= each
        if not mask:
            continue
        new = Hint(mask, all(h.preferred for h in choice) and len(set(named)) <= 1)
        if best is None or new.preferred > best.preferred:
            best = new
        elif new.preferred == best.preferred and best.nodes is not None:
            old, size, now = best.nodes, mask.bit_count(), best.nodes.bit_count()
            if new.preferred or now > demand or size == now:
                wins = fits_better(mask, old)
            else:
                wins = now < size <= demand
            best = new if wins else best
    return best or Hint(every, preferred=False)
