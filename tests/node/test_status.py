"""The node's status, its conditions, and the patch that tells them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from lightkube.models.core_v1 import ContainerImage, Node, NodeAddress, NodeCondition, NodeStatus

from kubelet_trio.cri import RuntimeState, v1
from kubelet_trio.kube import apply_strategic
from kubelet_trio.model import NANO, to_datetime
from kubelet_trio.node import (
    Machine,
    NodeResources,
    Pressure,
    Reservations,
    node_capacity,
    resources_of,
)
from kubelet_trio.node.conditions import RuntimeWatch, node_conditions, transitions
from kubelet_trio.node.machine import system_info
from kubelet_trio.node.observer import largest_first
from kubelet_trio.node.status import material_patch, node_status, status_patch
from tests.node.make import AMOUNTS, IDENTITY, NOW, view


def said(conditions: list[NodeCondition]) -> dict[str, tuple[str, str | None, str | None]]:
    return {c.type: (c.status, c.reason, c.message) for c in conditions}


def test_a_node_that_is_well_says_so_in_upstreams_words() -> None:
    found = node_conditions((), Pressure(), (), NOW)
    assert [c.type for c in found] == ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
    assert said(found) == {
        "MemoryPressure": (
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": (
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    }


def test_pressure_and_trouble_are_told() -> None:
    found = said(node_conditions((), Pressure(True, True, True), ("a is down", "b is"), NOW))
    assert found["MemoryPressure"][:2] == ("True", "KubeletHasInsufficientMemory")
    assert found["DiskPressure"][:2] == ("True", "KubeletHasDiskPressure")
    assert found["PIDPressure"][:2] == ("True", "KubeletHasInsufficientPID")
    assert found["Ready"] == ("False", "KubeletNotReady", "[a is down, b is]")


def test_conditions_of_others_stay_and_transition_times_move_with_the_status_only() -> None:
    theirs = NodeCondition(type="NetworkUnavailable", status="False", reason="RouteCreated")
    gone = NodeCondition(type="OutOfDisk", status="False")
    first = node_conditions((gone, theirs), Pressure(), ("down",), NOW)
    second = node_conditions(first, Pressure(), (), NOW + 10)
    assert second[0].type == "NetworkUnavailable"
    assert "OutOfDisk" not in {c.type for c in second}
    moved = {c.type: c.lastTransitionTime == to_datetime(NOW + 10) for c in second}
    assert moved == {
        "NetworkUnavailable": False,
        "MemoryPressure": False,
        "DiskPressure": False,
        "PIDPressure": False,
        "Ready": True,
    }
    assert all(c.lastHeartbeatTime == to_datetime(NOW + 10) for c in second[1:])


def test_events_tell_of_transitions() -> None:
    first = node_conditions((), Pressure(), ("down",), NOW)
    second = node_conditions(first, Pressure(disk=True), (), NOW)
    assert transitions((), first) == [
        "NodeHasSufficientMemory",
        "NodeHasNoDiskPressure",
        "NodeHasSufficientPID",
    ]
    assert transitions(first, second) == ["NodeHasDiskPressure", "NodeReady"]
    assert transitions(second, second) == []


def test_what_the_status_lacks_keeps_the_node_from_being_ready() -> None:
    status = node_status(IDENTITY, view(resources=NodeResources()), NodeStatus())
    ready = said(status.conditions or [])["Ready"]
    assert ready[2] == ("missing node capacity for resources: cpu, memory, pods, ephemeral-storage")


def test_disk_is_not_missed_where_isolation_is_off() -> None:
    amounts = {name: amount for name, amount in AMOUNTS.items() if name != "ephemeral-storage"}
    seen = view(resources=NodeResources(amounts, amounts))
    status = node_status(replace(IDENTITY, local_storage=False), seen, NodeStatus())
    assert said(status.conditions or [])["Ready"][0] == "True"
    assert "ephemeral-storage" not in (status.capacity or {})


def test_resources_that_others_announce_stay() -> None:
    before = NodeStatus(
        capacity={"example.com/dongle": "4", "hugepages-1Gi": "1Gi"},
        allocatable={"example.com/dongle": "4"},
    )
    status = node_status(IDENTITY, view(), before)
    assert status.capacity == {"example.com/dongle": "4", **AMOUNTS}


def test_what_others_announce_can_be_allocated_as_far_as_they_announce_it() -> None:
    """MachineInfo of setters.go, and docs/tasks/administer-cluster/extended-resource-node."""
    before = NodeStatus(
        capacity={"example.com/dongle": "4", "kubernetes.io/batch-cpu": "2000"},
        allocatable={
            "example.com/dongle": "3",
            "example.com/withdrawn": "1",
            "kubernetes.io/batch-memory": "1Gi",
        },
    )
    status = node_status(IDENTITY, view(), before)
    announced = {"example.com/dongle": "4", "kubernetes.io/batch-cpu": "2000"}
    assert status.capacity == {**announced, **AMOUNTS}
    assert status.allocatable == {**announced, "kubernetes.io/batch-memory": "1Gi", **AMOUNTS}


def test_amounts_are_written_as_the_api_writes_them() -> None:
    machine = Machine(2, 4 * 1024**3, hugepages={"2Mi": 0}, storage=10**9)
    reserved = Reservations({"cpu": NANO // 10}, {}, {})
    found = resources_of(node_capacity(machine, reserved))
    assert found.capacity == {
        "cpu": "2",
        "memory": "4Gi",
        "ephemeral-storage": "1G",
        "hugepages-2Mi": "0",
        "pods": "110",
    }
    assert found.allocatable["cpu"] == "1900m"


def addresses(status: NodeStatus) -> list[tuple[str, str]]:
    return [(a.type, a.address) for a in status.addresses or ()]


def test_addresses_are_the_ips_and_the_name() -> None:
    status = node_status(IDENTITY, view(host_ips=("192.0.2.7", "2001:db8::7")), NodeStatus())
    assert addresses(status) == [
        ("InternalIP", "192.0.2.7"),
        ("InternalIP", "2001:db8::7"),
        ("Hostname", "node-1"),
    ]


def test_a_cloud_provider_sets_the_addresses() -> None:
    cloud = replace(IDENTITY, external_cloud=True)
    its = [NodeAddress(type="ExternalIP", address="203.0.113.4")]
    assert addresses(node_status(cloud, view(), NodeStatus())) == [("Hostname", "node-1")]
    assert addresses(node_status(cloud, view(), NodeStatus(addresses=its))) == [
        ("ExternalIP", "203.0.113.4")
    ]
    # 192.0.2.7 is what --node-ip says, or what it means where it names just a family.
    asked = replace(cloud, has_node_ip=True)
    assert addresses(node_status(asked, view(), NodeStatus())) == [
        ("InternalIP", "192.0.2.7"),
        ("Hostname", "node-1"),
    ]


@pytest.mark.parametrize("external_cloud", [False, True])
def test_while_node_ip_is_not_the_machines_addresses_stay(external_cloud: bool) -> None:
    identity = replace(IDENTITY, external_cloud=external_cloud, has_node_ip=True)
    seen = view(address_problem="not found")
    assert addresses(node_status(identity, seen, NodeStatus())) == []
    known = NodeStatus(addresses=[NodeAddress(type="InternalIP", address="192.0.2.1")])
    assert addresses(node_status(identity, seen, known)) == [("InternalIP", "192.0.2.1")]


@pytest.mark.parametrize(("limit", "sizes"), [(2, [30, 20]), (0, None), (-1, [30, 20, 10])])
def test_the_largest_images_are_told_with_few_of_their_names(
    limit: int, sizes: list[int] | None
) -> None:
    images = tuple(
        ContainerImage(names=[f"i{size}:{tag}" for tag in range(7)], sizeBytes=size)
        for size in (30, 20, 10)
    )
    found = node_status(replace(IDENTITY, max_images=limit), view(images=images), NodeStatus())
    assert ([i.sizeBytes for i in found.images] if found.images else None) == sizes
    assert all(len(i.names or ()) == 5 for i in found.images or ())


def test_images_are_told_in_one_order_however_the_runtime_lists_them() -> None:
    images = [
        v1.Image(id=f"sha256:{name}", repo_tags=[f"{name}:1"], size=size)
        for name, size in (("a", 20), ("b", 20), ("c", 10), ("d", 30))
    ]
    for listed in itertools.permutations(images):
        assert [i.names for i in largest_first(listed)] == [["d:1"], ["b:1"], ["a:1"], ["c:1"]]


def test_heartbeats_alone_are_no_change() -> None:
    first = node_status(IDENTITY, view(), NodeStatus())
    later = node_status(IDENTITY, view(now=NOW + 10), first)
    assert material_patch(first, later) == {}
    assert status_patch(Node(status=first), later) != {}
    assert material_patch(first, node_status(IDENTITY, view(not_ready=("x",)), first)) != {}


def test_what_another_kubelet_declared_is_taken_back() -> None:
    before = Node(status=NodeStatus(declaredFeatures=["GuaranteedQoSPodCPUResize"]))
    assert before.status is not None
    after = node_status(IDENTITY, view(), before.status)
    patched = apply_strategic(msgspec.to_builtins(before), status_patch(before, after), "Node")
    assert patched["status"].get("declaredFeatures") is None
    after = node_status(IDENTITY, view(declared=("A", "B")), before.status)
    patched = apply_strategic(msgspec.to_builtins(before), status_patch(before, after), "Node")
    assert patched["status"]["declaredFeatures"] == ["A", "B"]


def test_a_patch_has_only_what_differs() -> None:
    first = node_status(IDENTITY, view(), NodeStatus())
    node = Node(status=first)
    assert status_patch(node, first) == {}
    amounts = {**AMOUNTS, "memory": "2Gi"}
    after = node_status(
        IDENTITY,
        view(
            not_ready=("down",), host_ips=("192.0.2.8",), resources=NodeResources(amounts, AMOUNTS)
        ),
        first,
    )
    patch = status_patch(node, after)["status"]
    assert patch["addresses"] == [
        {"$patch": "replace"},
        {"type": "InternalIP", "address": "192.0.2.8"},
        {"type": "Hostname", "address": "node-1"},
    ]
    assert [c["type"] for c in patch["conditions"]] == ["Ready"]
    assert patch["capacity"] == {"memory": "2Gi"}
    others = {name for name in patch if not name.startswith("$setElementOrder")}
    assert others == {"addresses", "capacity", "conditions"}


def test_a_patch_says_what_is_gone() -> None:
    before = NodeStatus(
        capacity={"cpu": "2", "hugepages-1Gi": "0"},
        conditions=[NodeCondition(type="OutOfDisk", status="False")],
    )
    after = NodeStatus(capacity={"cpu": "2"}, conditions=[])
    patch = status_patch(Node(status=before), after)
    left = apply_strategic({"status": msgspec.to_builtins(before)}, patch, "Node")
    assert left["status"] == {"capacity": {"cpu": "2"}, "conditions": []}


def test_a_runtime_may_be_away_for_a_moment() -> None:
    watch = RuntimeWatch()
    away = RuntimeState(problem="connection refused", network_problem="")
    well = RuntimeState(problem="", network_problem="")
    assert watch.problems(away, 0.0) == [
        "container runtime status check may not have completed yet"
    ]
    assert watch.problems(well, 1.0) == []
    assert watch.problems(away, 30.9) == []
    assert watch.problems(away, 31.0) == ["container runtime is down"]
    assert watch.problems(well, 32.0) == []


def test_a_runtime_that_says_it_is_not_ready_is_believed_at_once() -> None:
    watch = RuntimeWatch(last_ready=0.0)
    verdict = "RuntimeReady=false reason:Broken message:x"
    assert watch.problems(RuntimeState(problem=verdict, network_problem=""), 1.0) == [
        f"container runtime not ready: {verdict}"
    ]
    network = "NetworkReady=false reason:NetworkPluginNotReady message:no CNI"
    assert watch.problems(RuntimeState(problem="", network_problem=network), 1.0) == [
        f"container runtime network not ready: {network}"
    ]


def test_the_machine_is_read_from_its_files(tmp_path: Path) -> None:
    files = {
        "etc/machine-id": "abc\n",
        "proc/sys/kernel/random/boot_id": "b00t\n",
        "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        "proc/meminfo": "MemTotal: 4 kB\nSwapTotal:       2 kB\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    class Kernel:
        release, machine = "6.1.0", "x86_64"

    info = system_info("v1.36.0", "containerd://1.7", root=tmp_path, uname=Kernel)
    plain = msgspec.to_builtins(info)
    assert plain["machineID"] == plain["systemUUID"] == "abc"
    assert plain["bootID"] == "b00t"
    assert plain["osImage"] == "Debian GNU/Linux 12 (bookworm)"
    assert plain["architecture"] == "amd64"
    assert plain["swap"] == {"capacity": 2048}


def test_a_machine_without_swap_says_nothing_of_swap(tmp_path: Path) -> None:
    """An API server of 1.36 refuses a capacity of 0 with the whole node."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 4 kB\nSwapTotal:       0 kB\n")
    assert system_info("v1.36.0", "containerd://1.7", root=tmp_path).swap is None


def test_a_machine_without_such_files_is_no_failure(tmp_path: Path) -> None:
    info = system_info("v1.36.0", "containerd://1.7", root=tmp_path)
    assert (info.machineID, info.osImage, info.swap) == ("", "Unknown", None)
