"""Which devices a container gets: pure.

Sources: devicesToAllocate and filterByAffinity of pkg/kubelet/cm/devicemanager. Where upstream
takes any device of a set, the order here is fixed, so that the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kubelet_trio.managers.devices.types import Listed


@dataclass(frozen=True, slots=True)
class Choice:
    """The devices for a request.

    Attributes:
        fixed: the ones that no preference of the plugin changes: those of init containers, and
            those of the wanted NUMA nodes where all of them are needed.
        pool: the ones from which the rest comes; () if there is no rest.
        rest: the rest, chosen from `pool`.
    """

    fixed: tuple[str, ...]
    pool: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """All devices of the choice, sorted."""
        return tuple(sorted((*self.fixed, *self.rest)))


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for devices of one resource.

    Attributes:
        resource: its name.
        count: how many devices.
        affinity: the mask of NUMA nodes to take them from first; None: any.
        reusable: devices of the pod's init containers; taken first.
        used: devices of other containers.
        first: devices to prefer among equals: what the plugin prefers, then what is reserved.
    """

    resource: str
    count: int
    affinity: int | None = None
    reusable: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    first: tuple[Collection[str], ...] = ()


def choose_devices(wish: Wish, listed: Listed) -> Choice | str:
    """Return the devices for a request, or why there are too few (upstream's text)."""
    healthy, order = listed.healthy, _order(wish)
    # Upstream reuses an init container's device although it has become unhealthy.
    fixed = sorted(wish.reusable & healthy, key=order)[: wish.count]
    missing = wish.count - len(fixed)
    if not missing:
        return Choice(tuple(fixed))
    free = healthy - wish.used
    if len(free) < missing:
        return (
            f"requested number of devices unavailable for {wish.resource}. "
            f"Requested: {missing}, Available: {len(free)}"
        )
    aligned, unaligned, nowhere = _by_affinity(wish, listed, free)
    if missing < len(aligned):
        pool = sorted(aligned, key=order)
    else:
        fixed += sorted(aligned, key=order)
        missing -= len(aligned)
        # Preferred ones of both kinds precede the others of both.
        pool = sorted(unaligned | nowhere, key=lambda name: (order(name)[0], name in nowhere, name))
    if not missing:
        return Choice(tuple(fixed))
    return Choice(tuple(fixed), tuple(pool), tuple(pool[:missing]))


def _order(wish: Wish) -> Callable[[str], tuple[int, str]]:
    def order(name: str) -> tuple[int, str]:
        ranks = (rank for rank, names in enumerate(wish.first) if name in names)
        return next(ranks, len(wish.first)), name

    return order


def _by_affinity(
    wish: Wish, listed: Listed, free: frozenset[str]
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the free devices near the wanted NUMA nodes, those near others, and the rest."""
    if wish.affinity is None or not listed.has_nodes:
        return frozenset(), frozenset(), free
    placed = frozenset(name for name in free if listed.devices[name].nodes)
    aligned = frozenset(name for name in placed if listed.devices[name].mask & wish.affinity)
    return aligned, placed - aligned, free - placed
