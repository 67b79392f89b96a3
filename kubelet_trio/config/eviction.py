"""From the eviction settings to what the agent does by them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kubelet_trio.config.types import KubeletConfiguration
from kubelet_trio.durations import parse_duration

if TYPE_CHECKING:
    from kubelet_trio.pressure import EvictionPolicy


def eviction_hard(config: KubeletConfiguration) -> Mapping[str, str]:
    """Return evictionHard with the defaults where they apply."""
    from kubelet_trio.pressure import hard_settings

    return hard_settings(config.eviction_hard, merge=config.merge_default_eviction_settings)


def eviction_policy(config: KubeletConfiguration) -> EvictionPolicy:
    """Return what a configuration says of eviction. Raises ValueError naming what is wrong."""
    from kubelet_trio.pressure import EvictionPolicy, parse_thresholds

    graces = {s: float(parse_duration(t)) for s, t in config.eviction_soft_grace_period.items()}
    return EvictionPolicy(
        thresholds=parse_thresholds(
            eviction_hard(config),
            config.eviction_soft,
            graces,
            config.eviction_minimum_reclaim,
            enforces_pods="pods" in config.enforce_node_allocatable,
        ),
        transition_period=config.eviction_pressure_transition_period,
        max_pod_grace=config.eviction_max_pod_grace_period,
        kernel_notification=config.kernel_memcg_notification,
        local_storage=config.local_storage_capacity_isolation,
    )


def eviction_problems(config: KubeletConfiguration) -> Iterator[str]:
    """Yield what is wrong with the eviction settings."""
    given = (
        config.eviction_hard
        or config.eviction_soft
        or config.eviction_soft_grace_period
        or config.eviction_minimum_reclaim
    )
    if not given:
        return  # the defaults are well, and looking at them costs an import
    try:
        eviction_policy(config)
    except ValueError as exc:
        yield f"eviction settings: {exc}"
