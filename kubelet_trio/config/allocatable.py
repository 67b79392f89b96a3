"""Reads and checks the settings that reduce allocatable: eviction thresholds, reservations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from kubelet_trio.config.types import KubeletConfiguration
from kubelet_trio.durations import parse_duration
from kubelet_trio.model import DEFAULT_EVICTION_HARD, format_cpus, parse_cpus

if TYPE_CHECKING:
    from kubelet_trio.node import Reservations
    from kubelet_trio.pressure import EvictionPolicy


def eviction_policy(config: KubeletConfiguration) -> EvictionPolicy:
    """Return the eviction policy of a configuration. Raises ValueError naming the bad setting."""
    from kubelet_trio.pressure import EvictionPolicy, parse_thresholds

    graces = {s: float(parse_duration(t)) for s, t in config.eviction_soft_grace_period.items()}
    return EvictionPolicy(
        thresholds=parse_thresholds(
            config.eviction_hard,
            config.eviction_soft,
            graces,
            config.eviction_minimum_reclaim,
            # With `pods`, hard memory.available also applies to the cgroup of all pods
            # (addAllocatableThresholds in pkg/kubelet/eviction/helpers.go).
            enforces_pods="pods" in config.enforce_node_allocatable,
        ),
        transition_period=config.eviction_pressure_transition_period,
        max_pod_grace=config.eviction_max_pod_grace_period,
        kernel_notification=config.kernel_memcg_notification,
        local_storage=config.local_storage_capacity_isolation,
    )


def eviction_problems(config: KubeletConfiguration) -> Iterator[str]:
    """Yield the problems of the eviction settings."""
    given = (
        config.eviction_hard != DEFAULT_EVICTION_HARD
        or config.eviction_soft
        or config.eviction_soft_grace_period
        or config.eviction_minimum_reclaim
    )
    if not given:
        return  # the defaults are valid, and checking them would import pressure/
    try:
        eviction_policy(config)
    except ValueError as exc:
        yield f"eviction settings: {exc}"


def reserved_problems(config: KubeletConfiguration) -> Iterator[str]:
    """Yield the problems of the reservations, each with its field."""
    if config.system_reserved or config.kube_reserved:
        # Imported only if needed: `--help` must stay fast.
        from kubelet_trio.node import ReservationError, parse_reservation

        for name, given in (
            ("systemReserved (--system-reserved)", config.system_reserved),
            ("kubeReserved (--kube-reserved)", config.kube_reserved),
        ):
            try:
                parse_reservation(name, given)
            except ReservationError as exc:
                yield str(exc)
    if config.reserved_system_cpus:
        try:
            parse_cpus(config.reserved_system_cpus)
        except ValueError as exc:
            yield f"reservedSystemCPUs (--reserved-cpus): {exc}"

    yield from _gated(config)


def _gated(config: KubeletConfiguration) -> Iterator[str]:
    """Yield the problems of fields that need a feature gate."""
    gates = config.feature_gates
    if config.memory_reservation_policy != "None" and not gates.get("MemoryQoS"):
        yield (
            f"memoryReservationPolicy {config.memory_reservation_policy} needs the feature gate "
            "MemoryQoS"
        )
    if config.qos_reserved and not gates.get("QOSReserved"):
        yield "qosReserved (--qos-reserved) needs the feature gate QOSReserved"
    for name, share in config.qos_reserved.items():
        # As ParseQOSReserved in pkg/kubelet/cm/container_manager.go.
        if name != "memory":
            yield f"qosReserved (--qos-reserved): {name!r}: only memory can be reserved"
        elif not re.fullmatch(r"(\d|[1-9]\d|100)%", share):
            yield f"qosReserved (--qos-reserved): memory: {share!r} is not 0% to 100%"


def reservations(
    config: KubeletConfiguration, online: Collection[int], *, ignore_eviction: bool = False
) -> Reservations:
    """Return the reservations on a machine with these CPUs. Raises ValueError.

    `ignore_eviction` leaves the eviction thresholds out.
    """
    from kubelet_trio.node import (
        Reservations,
        parse_reservation,
        with_reserved_cpus,
    )

    reserved = Reservations(
        system=parse_reservation("systemReserved", config.system_reserved),
        kube=parse_reservation("kubeReserved", config.kube_reserved),
        eviction_hard={} if ignore_eviction else config.eviction_hard,
    )
    # reservedSystemCPUs overrides the cpu of both reservations (`with_reserved_cpus`).
    kept = parse_cpus(config.reserved_system_cpus)
    # As getReservedCPUs (cmd/kubelet/app/server.go): a subset of the CPUs of this machine.
    if missing := kept.difference(online):
        raise ValueError(
            f"reservedSystemCPUs (--reserved-cpus): {config.reserved_system_cpus}: this machine "
            f"has CPUs {format_cpus(online)} online, and not {format_cpus(missing)}"
        )
    return with_reserved_cpus(reserved, len(kept))
