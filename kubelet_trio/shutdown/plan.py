"""Group pods by priority for a node shutdown, each group with its period. Pure.

Source: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go (1.36).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import SYSTEM_CRITICAL_PRIORITY, PodUid, spec

NOT_READY = "node is shutting down"
REJECTED = ("NodeShutdown", "Pod was rejected as the node is shutting down.")


@dataclass(frozen=True, slots=True, order=True)
class ShutdownPeriod:
    """The seconds for pods of at least this priority, up to the priority of the next period."""

    priority: int
    seconds: int


@dataclass(frozen=True, slots=True)
class ShutdownGroup:
    """Pods that terminate together."""

    period: ShutdownPeriod
    pods: tuple[tuple[PodUid, Pod], ...]


def shutdown_periods(
    whole: float, critical: float, by_priority: Iterable[ShutdownPeriod] = ()
) -> tuple[ShutdownPeriod, ...]:
    """Return the periods of a configuration, the lowest priority first; none if it is off.

    Args:
        whole: shutdownGracePeriod, in seconds.
        critical: shutdownGracePeriodCriticalPods, the part of it for critical pods.
        by_priority: shutdownGracePeriodByPodPriority, which replaces the other two.
    """
    given = tuple(sorted(by_priority))
    if given:
        return given
    if whole <= 0 or critical > whole:
        return ()
    # migrateConfig: the two durations become two priorities.
    return (
        ShutdownPeriod(0, int(whole - critical)),
        ShutdownPeriod(SYSTEM_CRITICAL_PRIORITY, int(critical)),
    )


def shutdown_groups(
    periods: Sequence[ShutdownPeriod], pods: Iterable[tuple[PodUid, Pod]]
) -> list[ShutdownGroup]:
    """Return the groups that have pods, in the order in which they terminate.

    A pod belongs to the highest period that is not above its priority, or to the lowest period.
    """
    members: list[list[tuple[PodUid, Pod]]] = [[] for _ in periods]
    priorities = [period.priority for period in periods]
    for uid, pod in pods:
        # A pod without a priority has 0, as in groupByPriority.
        index = bisect_right(priorities, spec(pod).priority or 0) - 1
        members[max(0, index)].append((uid, pod))
    return [
        ShutdownGroup(period, tuple(group))
        for period, group in zip(periods, members, strict=True)
        if group
    ]


def whole_period(periods: Iterable[ShutdownPeriod]) -> int:
    """Return the seconds that the machine's shutdown has to wait."""
    return sum(period.seconds for period in periods)
