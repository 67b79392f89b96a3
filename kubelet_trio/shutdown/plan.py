"""In which order pods end when the node shuts down, and how long each group has: pure.

Source: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go (1.36).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import SYSTEM_CRITICAL_PRIORITY, PodUid, spec


@dataclass(frozen=True, slots=True, order=True)
class ShutdownPeriod:
    """What pods of a priority and above have, up to the next one's."""

    priority: int
    seconds: int


@dataclass(frozen=True, slots=True)
class ShutdownGroup:
    """Pods that end together."""

    period: ShutdownPeriod
    pods: tuple[tuple[PodUid, Pod], ...]


def shutdown_periods(
    whole: float, critical: float, by_priority: Iterable[ShutdownPeriod] = ()
) -> tuple[ShutdownPeriod, ...]:
    """Return the periods of a configuration, the lowest priority first; none: it is off.

    Args:
        whole: shutdownGracePeriod, in seconds.
        critical: shutdownGracePeriodCriticalPods, the part of it for critical pods.
        by_priority: shutdownGracePeriodByPodPriority, in the others' stead.
    """
    given = tuple(sorted(by_priority))
    if given:
        return given
    if whole <= 0 or critical > whole:
        return ()
    return (
        ShutdownPeriod(0, int(whole - critical)),
        ShutdownPeriod(SYSTEM_CRITICAL_PRIORITY, int(critical)),
    )


def shutdown_groups(
    periods: Sequence[ShutdownPeriod], pods: Iterable[tuple[PodUid, Pod]]
) -> list[ShutdownGroup]:
    """Return the groups in the order in which they end; one without pods is left out.

    A pod belongs to the highest period that is not above its priority; those below all of
    them to the lowest.
    """
    members: list[list[tuple[PodUid, Pod]]] = [[] for _ in periods]
    priorities = [period.priority for period in periods]
    for uid, pod in pods:
        index = bisect_right(priorities, spec(pod).priority or 0) - 1
        members[max(0, index)].append((uid, pod))
    return [
        ShutdownGroup(period, tuple(group))
        for period, group in zip(periods, members, strict=True)
        if group
    ]


def whole_period(periods: Iterable[ShutdownPeriod]) -> int:
    """Return the seconds that the machine has to wait for us."""
    return sum(period.seconds for period in periods)
