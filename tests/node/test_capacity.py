from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.model import NANO
from kubelet_trio.node import (
    Machine,
    ReservationError,
    Reservations,
    node_capacity,
    parse_reservation,
    read_machine,
    reserved_amounts,
    with_reserved_cpus,
)
from kubelet_trio.node.capacity import threshold_amount

GI = 1 << 30
MI = 1 << 20
MACHINE = Machine(4, 8 * GI, hugepages={"2Mi": GI, "1Gi": 0}, storage=100 * GI, max_pids=32768)


def test_allocatable_is_what_is_left_after_daemons_thresholds_and_huge_pages() -> None:
    reserved = Reservations(
        system=parse_reservation("systemReserved", {"cpu": "200m", "memory": "512Mi"}),
        kube=parse_reservation("kubeReserved", {"cpu": "0.3", "memory": "512Mi", "pid": "768"}),
    )
    node = node_capacity(MACHINE, reserved)
    assert node.capacity == {
        "cpu": 4 * NANO,
        "memory": 8 * GI * NANO,
        "ephemeral-storage": 100 * GI * NANO,
        "hugepages-2Mi": GI * NANO,
        "hugepages-1Gi": 0,
        "pods": 110 * NANO,
    }
    assert node.allocatable["cpu"] == 3500 * NANO // 1000
    assert node.allocatable["memory"] == (8 * GI - GI - 100 * MI - GI) * NANO
    # 10% of 100Gi, as a share with 32 bits: 160 bytes more.
    assert node.allocatable["ephemeral-storage"] == (90 * GI - 160) * NANO
    assert node.allocatable["hugepages-2Mi"] == GI * NANO
    # What is written to the pods' cgroup leaves eviction room to act, and keeps huge pages in.
    assert node.enforceable["memory"] == 7 * GI * NANO
    assert node.enforceable["ephemeral-storage"] == 100 * GI * NANO
    assert node.enforceable["pid"] == 32000 * NANO
    assert "pid" not in node.allocatable


@pytest.mark.parametrize(
    ("max_pods", "per_core", "pods"), [(110, 0, 110), (110, 10, 40), (30, 10, 30)]
)
def test_pods_are_limited_by_the_node_and_by_its_cores(
    max_pods: int, per_core: int, pods: int
) -> None:
    node = node_capacity(MACHINE, max_pods=max_pods, pods_per_core=per_core)
    assert node.capacity["pods"] == node.allocatable["pods"] == pods * NANO


def test_every_resource_of_which_too_much_is_kept_is_named() -> None:
    reserved = Reservations(system={"cpu": 5 * NANO}, kube={"memory": 8 * GI * NANO})
    with pytest.raises(ReservationError) as caught:
        node_capacity(MACHINE, reserved)
    assert 'Resource "cpu" has a reservation of 5000m but capacity of 4000m.' in str(caught.value)
    assert 'Resource "memory" has a reservation of 8694792192' in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu": "1"}, "cannot reserve 'gpu' resource"),
        ({"cpu": "-1"}, "resource quantity for 'cpu' cannot be negative"),
        ({"memory": "lots"}, "kubeReserved: memory: "),
    ],
)
def test_what_cannot_be_reserved_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ReservationError, match=r"^kubeReserved") as caught:
        parse_reservation("kubeReserved", given)
    assert said in str(caught.value)


def test_reserved_cpus_stand_in_for_what_else_was_said_of_cpu() -> None:
    before = Reservations({"cpu": 9, "memory": 1}, {"cpu": 8, "memory": 2}, {})
    after = with_reserved_cpus(before, 2)
    assert after == Reservations({"cpu": 2 * NANO, "memory": 1}, {"memory": 2}, {})
    assert with_reserved_cpus(before, 0) is before


@pytest.mark.parametrize(
    ("threshold", "capacity", "amount"),
    [("100Mi", 8 * GI, 100 * MI), ("10%", 1001, 100), ("1.5%", 1000, 14)],
)
def test_thresholds_are_amounts_or_shares(threshold: str, capacity: int, amount: int) -> None:
    assert threshold_amount(threshold, capacity * NANO) == amount * NANO


def test_a_share_of_the_disk_is_the_go_kubelets_to_the_byte() -> None:
    """The figures of a node of a cloud provider: the share is kept in 32 bits (ThresholdValue)."""
    node = node_capacity(Machine(2, 8 * GI, storage=129_886_128 << 10))
    assert node.allocatable["ephemeral-storage"] == 119_703_055_367 * NANO


@pytest.mark.parametrize("off", ["0%", "100%"])
def test_a_signal_that_is_off_keeps_nothing(off: str) -> None:
    node = node_capacity(Machine(1, GI), Reservations(eviction_hard={"memory.available": off}))
    assert node.allocatable["memory"] == GI * NANO


amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pid", "ephemeral-storage"]),
    st.integers(0, 4 * NANO),
)


@given(system=amounts, kube=amounts, pages=st.integers(0, 10 * GI))
def test_nothing_is_negative_and_nothing_grows(
    system: dict[str, int], kube: dict[str, int], pages: int
) -> None:
    machine = Machine(8, 8 * GI, hugepages={"2Mi": pages}, storage=GI, max_pids=100)
    node = node_capacity(machine, Reservations(system, kube, {}))
    for name, amount in node.allocatable.items():
        assert 0 <= amount <= node.capacity[name]
        assert amount <= node.enforceable.get(name, amount)


def test_the_machine_is_read_from_proc_and_sys(tmp_path: Path) -> None:
    kernel = tmp_path / "proc/sys/kernel"
    kernel.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2048 kB\nSwapTotal: 1024 kB\n")
    (kernel / "pid_max").write_text("4194304\n")
    (kernel / "threads-max").write_text("7000\n")
    pages = tmp_path / "sys/kernel/mm/hugepages"
    for name, count in (("hugepages-2048kB", 3), ("hugepages-1048576kB", 0)):
        (pages / name).mkdir(parents=True)
        (pages / name / "nr_hugepages").write_text(f"{count}\n")
    machine = read_machine(tmp_path / "not/yet/there", proc=tmp_path / "proc", sys=tmp_path / "sys")
    assert (machine.memory, machine.swap, machine.max_pids) == (2 * MI, MI, 7000)
    assert machine.hugepages == {"2Mi": 6 * MI, "1Gi": 0}
    assert machine.cpus > 0
    assert machine.storage > 0


@pytest.mark.parametrize(
    ("listed", "expected"), [("0,2,4-5\n", {0, 2, 4, 5}), ("\n", None), ("?\n", None), (None, None)]
)
def test_the_cpus_that_are_online_are_read(
    tmp_path: Path, listed: str | None, expected: set[int] | None
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2048 kB\n")
    cpus = tmp_path / "sys/devices/system/cpu"
    cpus.mkdir(parents=True)
    if listed is not None:
        (cpus / "online").write_text(listed)
    machine = read_machine(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    assert machine.online == (expected if expected is not None else set(range(machine.cpus)))


def test_this_machine_has_something() -> None:
    node = node_capacity(read_machine(Path("/")))
    assert node.allocatable["cpu"] > 0
    assert 0 < node.allocatable["memory"] < node.capacity["memory"]


def test_disk_is_no_resource_where_isolation_is_off() -> None:
    machine = Machine(cpus=2, memory=GI, storage=50 * GI)
    found = node_capacity(machine, Reservations(), local_storage=False)
    assert all("ephemeral-storage" not in a for a in (found.capacity, found.allocatable))
    assert "ephemeral-storage" in node_capacity(machine, Reservations()).capacity


def test_what_is_kept_from_pods_is_the_reservations_and_the_thresholds() -> None:
    reserved = Reservations({"cpu": NANO}, {"cpu": NANO, "memory": 3}, {"memory.available": "2"})
    capacity = {"cpu": 4 * NANO, "memory": 10 * NANO, "hugepages-2Mi": 0}
    assert reserved_amounts(reserved, capacity) == {
        "cpu": 2 * NANO,
        "memory": 2 * NANO + 3,
        "hugepages-2Mi": 0,
    }
