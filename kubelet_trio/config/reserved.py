"""What the configuration keeps from pods: read, and checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kubelet_trio.config.eviction import eviction_hard
from kubelet_trio.config.types import KubeletConfiguration

if TYPE_CHECKING:
    from kubelet_trio.node import Reservations


def reserved_problems(config: KubeletConfiguration) -> Iterator[str]:
    """Yield what is wrong with the reservations, each by its field."""
    if config.system_reserved or config.kube_reserved:
        # Only then, for whoever just asks for help need not wait for quantities.
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
        from kubelet_trio.node import parse_cpus

        try:
            parse_cpus(config.reserved_system_cpus)
        except ValueError as exc:
            yield f"reservedSystemCPUs (--reserved-cpus): {exc}"

    yield from _gated(config)


def _gated(config: KubeletConfiguration) -> Iterator[str]:
    """Yield what is set and would do nothing, for its gate is off, or cannot be read."""
    gates = config.feature_gates
    if config.memory_reservation_policy != "None" and not gates.get("MemoryQoS"):
        yield (
            f"memoryReservationPolicy {config.memory_reservation_policy} needs the feature gate "
            "MemoryQoS"
        )
    if config.qos_reserved and not gates.get("QOSReserved"):
        yield "qosReserved (--qos-reserved) needs the feature gate QOSReserved"
    for name, share in config.qos_reserved.items():
        if name != "memory":
            yield f"qosReserved (--qos-reserved): {name!r}: only memory can be reserved"
        elif not re.fullmatch(r"(\d|[1-9]\d|100)%", share):
            yield f"qosReserved (--qos-reserved): memory: {share!r} is not 0% to 100%"


def reservations(
    config: KubeletConfiguration, cpus: int, *, ignore_eviction: bool = False
) -> Reservations:
    """Return the reservations on a machine with `cpus` CPUs. Raises ValueError.

    `ignore_eviction` leaves the eviction thresholds out of them.
    """
    from kubelet_trio.node import (
        Reservations,
        parse_cpus,
        parse_reservation,
        with_reserved_cpus,
    )

    thresholds = eviction_hard(config)
    reserved = Reservations(
        system=parse_reservation("systemReserved", config.system_reserved),
        kube=parse_reservation("kubeReserved", config.kube_reserved),
        eviction_hard={} if ignore_eviction else thresholds,
    )
    kept = parse_cpus(config.reserved_system_cpus)
    if missing := sorted(cpu for cpu in kept if cpu >= cpus):
        raise ValueError(
            f"reservedSystemCPUs (--reserved-cpus): {config.reserved_system_cpus}: this machine "
            f"has CPUs 0-{cpus - 1}, and no {missing[0]}"
        )
    return with_reserved_cpus(reserved, len(kept))
