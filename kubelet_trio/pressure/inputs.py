"""What the eviction manager observes of the node, and who is told what it saw and decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid
from kubelet_trio.pressure.ranking import PodUsage
from kubelet_trio.pressure.signals import FileSystems, Layout
from kubelet_trio.pressure.thresholds import Observations

PERIOD = 10.0  # s between two looks: Go's evictionMonitoringPeriod


class Signals(Protocol):
    """Reads the node's signals. Blocks."""

    def observe(self, places: FileSystems) -> Observations:
        """Return the signals that can be read; none of a file system without a path."""
        ...


class PodUsages(Protocol):
    """Reads the usage of pods."""

    async def read(
        self, pods: Iterable[tuple[PodUid, Pod]], *, all_pods: bool, disk: bool
    ) -> dict[PodUid, PodUsage]:
        """Return the usage of pods, as far as it is known. Raises `RuntimeCallError`."""
        ...


class EvictionNotes(Protocol):
    """Is told what a look at the node found, and what follows. Nothing here blocks."""

    def observed(self, observed: Observations, layout: Layout, *, is_calm: bool) -> None:
        """Note the signals; `is_calm`: no threshold is met, its minimum reclaim included."""
        ...

    def unknown(self, error: str) -> None:
        """Note that the signals cannot be read."""
        ...

    def measured(
        self, usages: Mapping[PodUid, PodUsage], seconds: float, *, all_pods: bool
    ) -> None:
        """Note the usages by which pods are evicted now, and how long it took to read them."""
        ...

    def not_measured(self, error: Exception, seconds: float) -> None:
        """Note that the usage of all pods cannot be read, so that none is evicted."""
        ...

    def evicted(self, uid: PodUid, signal: str, grace: int, message: str) -> None:
        """Note an eviction."""
        ...


class NoEvictionNotes:
    """Nobody wants to know."""

    def observed(self, observed: Observations, layout: Layout, *, is_calm: bool) -> None:
        pass

    def unknown(self, error: str) -> None:
        pass

    def measured(
        self, usages: Mapping[PodUid, PodUsage], seconds: float, *, all_pods: bool
    ) -> None:
        pass

    def not_measured(self, error: Exception, seconds: float) -> None:
        pass

    def evicted(self, uid: PodUid, signal: str, grace: int, message: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class EvictionInputs:
    """All that an eviction manager observes besides the pods, in place of this machine's."""

    signals: Signals
    usages: PodUsages
    layout: Callable[[FileSystems], Layout]
    notes: EvictionNotes
    period: float = PERIOD
