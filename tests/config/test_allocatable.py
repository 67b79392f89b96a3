from __future__ import annotations

import pytest

from kubelet_trio.config import KubeletConfiguration, reservations
from kubelet_trio.config.allocatable import reserved_problems
from kubelet_trio.model import DEFAULT_EVICTION_HARD, NANO


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (KubeletConfiguration(system_reserved={"gpu": "1"}), "cannot reserve 'gpu' resource"),
        (KubeletConfiguration(kube_reserved={"cpu": "-1"}), "kubeReserved (--kube-reserved): "),
        (KubeletConfiguration(reserved_system_cpus="a"), "reservedSystemCPUs (--reserved-cpus): "),
        (KubeletConfiguration(memory_reservation_policy="TieredReservation"), "gate MemoryQoS"),
        (
            KubeletConfiguration(qos_reserved={"memory": "50%"}),
            "needs the feature gate QOSReserved",
        ),
        (
            KubeletConfiguration(qos_reserved={"cpu": "50%"}, feature_gates={"QOSReserved": True}),
            "'cpu': only memory can be reserved",
        ),
        (
            KubeletConfiguration(
                qos_reserved={"memory": "101%"}, feature_gates={"QOSReserved": True}
            ),
            "memory: '101%' is not 0% to 100%",
        ),
    ],
)
def test_what_cannot_be_kept_back_is_named(config: KubeletConfiguration, said: str) -> None:
    [problem] = reserved_problems(config)
    assert said in problem


def test_what_can_be_is_no_problem() -> None:
    config = KubeletConfiguration(
        system_reserved={"cpu": "100m", "pid": "100"},
        reserved_system_cpus="0",
        memory_reservation_policy="TieredReservation",
        qos_reserved={"memory": "100%"},
        feature_gates={"QOSReserved": True, "MemoryQoS": True},
    )
    assert list(reserved_problems(config)) == []


def test_reservations_are_read_with_their_thresholds() -> None:
    config = KubeletConfiguration(
        system_reserved={"cpu": "1", "memory": "1"}, kube_reserved={"cpu": "1"}
    )
    reserved = reservations(config, range(4))
    assert reserved.system == {"cpu": NANO, "memory": NANO}
    assert reserved.kube == {"cpu": NANO}
    assert reserved.eviction_hard == DEFAULT_EVICTION_HARD
    assert reservations(config, range(4), ignore_eviction=True).eviction_hard == {}
    own = KubeletConfiguration(eviction_hard={"memory.available": "1Gi"})
    assert reservations(own, range(4)).eviction_hard == {"memory.available": "1Gi"}


def test_reserved_cpus_must_be_online() -> None:
    config = KubeletConfiguration(reserved_system_cpus="0,2-3", system_reserved={"cpu": "9"})
    assert reservations(config, range(4)).system == {"cpu": 3 * NANO}
    with pytest.raises(ValueError, match="this machine has CPUs 0-1 online, and not 2"):
        reservations(config, range(2))


def test_cpus_that_are_online_may_have_gaps() -> None:
    """Without SMT, machines whose threads are numbered one after the other have every other CPU."""
    without_smt = range(0, 8, 2)
    last = KubeletConfiguration(reserved_system_cpus="6")
    assert reservations(last, without_smt).system == {"cpu": NANO}
    offline = KubeletConfiguration(reserved_system_cpus="0-1")
    with pytest.raises(ValueError, match="this machine has CPUs 0,2,4,6 online, and not 1"):
        reservations(offline, without_smt)
