from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.stats import (
    CgroupUsage,
    ContainerSubject,
    DiskReading,
    Filesystem,
    Host,
    MachineInfo,
    Memory,
    PodSubject,
)
from kubelet_trio.stats.cadvisor import cadvisor_page
from kubelet_trio.stats.disks import parse_diskstats, visible_mounts
from kubelet_trio.stats.read import read_host, read_networks
from kubelet_trio.stats.resource import resource_text
from kubelet_trio.stats.subjects import Places, find_places
from kubelet_trio.stats.summary import Snapshot, make_summary
from kubelet_trio.stats.text import Exposition, escape, number
from kubelet_trio.stats.usage import Cpu
from tests.stats import trees

NOW = 1_700_000_100.25
UID = PodUid(trees.UID)
ID = ContainerId(trees.CONTAINER)
POD = PodSubject(
    UID,
    "web-0",
    "prod",
    (
        ContainerSubject(
            ID,
            "web",
            "registry.k8s.io/web:1",
            101,
            started_at=1_700_000_010,
            created_at=1_700_000_009,
        ),
    ),
    sandbox_id=SandboxId(trees.SANDBOX),
    sandbox_created_at=1_700_000_005,
    started_at=1_700_000_005,
    claims={"data": "data-web-0"},
    volumes=frozenset({"data", "scratch"}),
    local_volumes=frozenset({"scratch"}),
)
DISK = DiskReading(
    node=Filesystem(NOW, 1000, 600, 400, 100, 60, 40),
    images=Filesystem(NOW, 2000, 1500, 300, 200, 160, 40, device="/dev/sdb"),
    containers=Filesystem(NOW, 3000, 2500, 30, 300, 260, 4, device="/dev/sdc"),
    writable={ID: Filesystem(NOW, used=70, inodes_used=7)},
    logs={ID: Filesystem(NOW, used=20, inodes_used=2)},
    volumes={
        UID: {
            "scratch": Filesystem(NOW, 1000, 600, 5, 100, 60, 3),
            "data": Filesystem(NOW, 9000, 8000, 1000, 90, 80, 10),
        }
    },
    hosts={UID: Filesystem(NOW, used=1, inodes_used=1)},
)


def pod_of(name: str) -> PodUid | None:
    return UID if "pod1" in name else None


@pytest.fixture(params=["v1", "v2"])
def snapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Snapshot:
    """The same pod on hosts of either version."""
    write: Callable[..., Host]
    write, pod, container = (
        (trees.write_v1, trees.POD_V1, trees.CONTAINER_V1)
        if request.param == "v1"
        else (trees.write_v2, trees.POD_V2, trees.CONTAINER_V2)
    )
    sandbox = container.replace(trees.CONTAINER, trees.SANDBOX)
    host = write(tmp_path, pod, container, sandbox, "/system.slice/agent.service")
    root = "/" + pod.split("/")[1]
    reading = read_host(host, [root], everything=True, now=NOW)
    return Snapshot(
        "node",
        root,
        reading,
        (POD,),
        find_places(reading.cgroups, [ID, trees.SANDBOX], pod_of),
        read_networks(host, {UID: 101}),
        DISK,
    )


def summary(snapshot: Snapshot, *, only: bool = False) -> Any:
    def rate(key: str, usage: CgroupUsage) -> int | None:
        return {ID: 250_000_000, UID: 260_000_000}.get(key)

    made = make_summary(snapshot, rate, only_cpu_and_memory=only)
    return msgspec.json.decode(msgspec.json.encode(made))


def test_the_summary_has_upstreams_shape(snapshot: Snapshot) -> None:
    answer = summary(snapshot)
    (pod,) = answer["pods"]
    assert pod["podRef"] == {"name": "web-0", "namespace": "prod", "uid": trees.UID}
    assert pod["startTime"] == "2023-11-14T22:13:25Z"
    (container,) = pod["containers"]
    time = "2023-11-14T22:15:00Z"
    cpu = container["cpu"]
    cpu.pop("psi")
    assert cpu == {
        "time": time,
        "usageNanoCores": 250_000_000,
        "usageCoreNanoSeconds": 2_500_000_000,
    }
    memory = container["memory"]
    memory.pop("psi")
    assert memory == {
        "time": time,
        "availableBytes": 134217728 - 83886080,
        "usageBytes": 104857600,
        "workingSetBytes": 83886080,
        "rssBytes": 41943040,
        "pageFaults": 1000,
        "majorPageFaults": 7,
    }
    assert container["rootfs"] == {
        "time": time,
        "availableBytes": 2500,
        "capacityBytes": 3000,
        "usedBytes": 70,
        "inodesFree": 260,
        "inodes": 300,
        "inodesUsed": 7,
    }
    assert container["logs"]["usedBytes"] == 20
    assert container["logs"]["capacityBytes"] == 1000
    assert container["swap"] == {"time": time, "swapUsageBytes": 4096}
    assert pod["process_stats"] == {"process_count": 2}
    assert pod["network"]["rxBytes"] == 1000
    assert pod["network"]["interfaces"] == [
        {"name": "eth0", "rxBytes": 1000, "rxErrors": 1, "txBytes": 2000, "txErrors": 3}
    ]
    volumes = {v["name"]: v for v in pod["volume"]}
    assert volumes["data"]["pvcRef"] == {"name": "data-web-0", "namespace": "prod"}
    assert "pvcRef" not in volumes["scratch"]
    # Writable layer, logs, the local volume, the hosts file; not what a claim holds.
    assert pod["ephemeral-storage"]["usedBytes"] == 70 + 20 + 5 + 1
    assert pod["ephemeral-storage"]["inodesUsed"] == 7 + 2 + 3 + 1


def test_the_nodes_part(snapshot: Snapshot) -> None:
    node = summary(snapshot)["node"]
    assert node["nodeName"] == "node"
    assert node["startTime"] == "2023-11-14T22:13:20Z"
    assert [c["name"] for c in node["systemContainers"]] == ["kubelet", "pods"]
    assert node["rlimit"] == {"time": "2023-11-14T22:15:00Z", "maxpid": 126000, "curproc": 345}
    assert node["fs"]["usedBytes"] == 400
    assert node["runtime"]["imageFs"]["usedBytes"] == 300
    assert node["runtime"]["containerFs"]["usedBytes"] == 30
    assert node["swap"]["swapUsageBytes"] == 400000 * 1024
    memory = node["memory"]
    assert memory["availableBytes"] == 16000000 * 1024 - memory["workingSetBytes"]


@pytest.mark.parametrize(
    ("limit", "theirs"),
    [(None, 16000000 * 1024), (1 << 30, 1 << 30), (1 << 62, 16000000 * 1024)],
)
def test_pods_have_the_memory_that_their_cgroup_may_use(
    snapshot: Snapshot, limit: int | None, theirs: int
) -> None:
    cgroups = dict(snapshot.reading.cgroups)
    memory = Memory(usage=10, inactive_file=4, limit=limit)
    cgroups[snapshot.pods_root] = CgroupUsage(NOW, memory=memory)
    reading = replace(snapshot.reading, cgroups=cgroups)
    *_, pods = summary(replace(snapshot, reading=reading))["node"]["systemContainers"]
    assert pods["memory"]["availableBytes"] == theirs - 6


def test_the_nodes_pressure_is_there_on_either_version(snapshot: Snapshot) -> None:
    node = summary(snapshot)["node"]
    for part in ("cpu", "memory", "io"):
        assert node[part]["psi"]["some"]["total"] == 123456


def test_system_containers_tell_of_their_pressure(snapshot: Snapshot) -> None:
    kubelet = summary(snapshot)["node"]["systemContainers"][0]
    assert ("io" in kubelet) == ("kubepods.slice" in snapshot.pods_root)
    assert "io" not in summary(snapshot, only=True)["node"]["systemContainers"][0]


def test_pods_pressure_is_zero_where_the_kernel_does_not_count_it(snapshot: Snapshot) -> None:
    (pod,) = summary(snapshot)["pods"]
    parts = [each[part]["psi"] for each in (pod, *pod["containers"]) for part in ("cpu", "memory")]
    if "kubepods.slice" not in snapshot.pods_root:
        # As of the Go kubelet: an e2e test of the summary wants all of it on either version.
        nothing = {"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0}
        assert parts == [{"full": nothing, "some": nothing}] * 4
        return
    assert all(
        psi["some"] == {"total": 123456, "avg10": 1.5, "avg60": 0.75, "avg300": 0.2}
        for psi in parts
    )
    assert pod["io"]["psi"]["full"]["total"] == 65432


def test_only_cpu_and_memory(snapshot: Snapshot) -> None:
    answer = summary(snapshot, only=True)
    (pod,) = answer["pods"]
    assert set(pod) - {"swap"} == {"podRef", "startTime", "containers", "cpu", "memory"}
    assert set(pod["containers"][0]) - {"swap"} == {"name", "startTime", "cpu", "memory"}
    assert {"network", "fs", "runtime", "rlimit", "io"}.isdisjoint(answer["node"])


def test_a_pod_without_a_cgroup_uses_what_its_containers_do(snapshot: Snapshot) -> None:
    reported = CgroupUsage(NOW, Cpu(usage=3_000_000_000), Memory(usage=10, inactive_file=4))
    bare = Snapshot("node", "", snapshot.reading, (POD,), Places({}, {}), reported={ID: reported})
    (pod,) = summary(bare)["pods"]
    assert pod["cpu"]["usageCoreNanoSeconds"] == 3_000_000_000
    assert pod["memory"]["workingSetBytes"] == 6
    page = samples(resource_text(bare))
    assert [s.value for s in page["pod_cpu_usage_seconds_total"]] == [3.0]


def samples(page: str) -> dict[str, list[Sample]]:
    """Read a page as Prometheus would; fails for what it would not take."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_metrics_resource(snapshot: Snapshot) -> None:
    page = samples(resource_text(snapshot))
    labels = {"container": "web", "namespace": "prod", "pod": "web-0"}
    (cpu,) = page["container_cpu_usage_seconds_total"]
    assert (cpu.labels, cpu.value, cpu.timestamp) == (labels, 2.5, NOW)
    (memory,) = page["container_memory_working_set_bytes"]
    assert (memory.labels, memory.value) == (labels, 83886080)
    assert page["container_start_time_seconds"][0].value == 1_700_000_010
    assert page["pod_cpu_usage_seconds_total"][0].labels == {"namespace": "prod", "pod": "web-0"}
    assert page["node_cpu_usage_seconds_total"][0].labels == {}
    assert page["resource_scrape_error"][0].value == 0


def test_metrics_resource_without_a_reading_says_so() -> None:
    page = samples(resource_text(None))
    assert set(page) == {"resource_scrape_error"}
    assert page["resource_scrape_error"][0].value == 1


def of(page: dict[str, list[Sample]], name: str, **labels: str) -> list[Sample]:
    return [s for s in page[name] if labels.items() <= s.labels.items()]


def test_metrics_cadvisor(snapshot: Snapshot) -> None:
    page = samples(b"".join(cadvisor_page(snapshot, MachineInfo(cores=2))).decode())
    path = snapshot.places.containers[ID]
    labels = {
        "container": "web",
        "id": path,
        "image": "registry.k8s.io/web:1",
        "name": ID,
        "namespace": "prod",
        "pod": "web-0",
    }
    (cpu,) = of(page, "container_cpu_usage_seconds_total", container="web")
    assert (cpu.labels, cpu.value) == ({**labels, "cpu": "total"}, 2.5)
    assert cpu.timestamp == NOW
    (memory,) = of(page, "container_memory_working_set_bytes", container="web")
    assert (memory.labels, memory.value) == (labels, 83886080)
    # The pod's own cgroup has a blank container, so that sums by container do not count twice.
    (pod,) = of(page, "container_memory_usage_bytes", id=snapshot.places.pods[UID])
    assert (pod.labels["container"], pod.labels["pod"]) == ("", "web-0")
    # The network is counted once a pod, with its sandbox.
    (received,) = of(page, "container_network_receive_bytes_total", pod="web-0")
    assert (received.labels["interface"], received.labels["name"]) == ("eth0", trees.SANDBOX)
    (reads,) = of(page, "container_fs_reads_bytes_total", container="web")
    assert (reads.labels["device"], reads.value) == ("/dev/sda", 1048576)
    (used,) = of(page, "container_fs_usage_bytes", container="web")
    assert (used.labels["device"], used.value) == ("/dev/sdc", 70)
    (throttled,) = of(page, "container_cpu_cfs_throttled_seconds_total", container="web")
    assert throttled.value == 0.25
    (burst,) = of(page, "container_cpu_cfs_burst_periods_total", container="web")
    assert burst.value == 3
    (burst,) = of(page, "container_cpu_cfs_burst_seconds_total", container="web")
    assert burst.value == 0.125
    assert of(page, "container_spec_memory_limit_bytes", container="web")[0].value == 134217728
    assert of(page, "container_spec_cpu_quota", container="web")[0].value == 50000
    assert of(page, "container_oom_events_total", container="web")[0].value == 1
    assert of(page, "machine_cpu_cores")[0].value == 2


def test_every_sample_of_a_family_has_the_same_labels(snapshot: Snapshot) -> None:
    for name, found in samples(b"".join(cadvisor_page(snapshot, MachineInfo())).decode()).items():
        assert len({frozenset(s.labels) for s in found}) == 1, name


def test_no_sample_is_there_twice(snapshot: Snapshot) -> None:
    page = samples(b"".join(cadvisor_page(snapshot, MachineInfo())).decode())
    keys = [(s.name, tuple(sorted(s.labels.items()))) for found in page.values() for s in found]
    assert len(keys) == len(set(keys))


# What the Go kubelet's /metrics/cadvisor has on Linux with containerd, by its includedMetrics.
CADVISOR_NAMES = frozenset(
    Path(__file__).with_name("cadvisor_names.txt").read_text("ascii").splitlines()
)
PRESSURE_NAMES = frozenset(
    f"container_pressure_{resource}_{kind}_seconds_total"
    for resource in ("cpu", "memory", "io")
    for kind in ("stalled", "waiting")
)


def test_the_names_are_cadvisors(snapshot: Snapshot) -> None:
    lines = b"".join(cadvisor_page(snapshot, MachineInfo())).decode().splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert names == CADVISOR_NAMES | PRESSURE_NAMES


def test_every_family_of_a_go_kubelet_is_there_with_its_labels(snapshot: Snapshot) -> None:
    file = Path(__file__).parents[1] / "golden/data/metrics.json"
    recorded = json.loads(file.read_text())["metrics_cadvisor"]
    labels: dict[str, list[str]] = {}
    for line in b"".join(cadvisor_page(snapshot, MachineInfo())).decode().splitlines():
        name, _, rest = line.partition("{")
        labels[name.partition(" ")[0]] = sorted(re.findall(r'(\w+)="', rest))
    assert {name: labels[name] for name in recorded} == recorded


def test_the_nodes_own_disks(snapshot: Snapshot) -> None:
    page = samples(b"".join(cadvisor_page(snapshot, MachineInfo())).decode())
    own = {"id": "/", "device": "/dev/sda1"}
    for name, value in (
        ("reads_total", 90),
        ("reads_merged_total", 8),
        ("sector_reads_total", 700),
        ("read_seconds_total", 0.06),
        ("writes_total", 50),
        ("sector_writes_total", 300),
        ("write_seconds_total", 0.02),
        ("io_current", 1),
        ("io_time_seconds_total", 0.065),
        ("io_time_weighted_seconds_total", 0.08),
    ):
        [sample] = of(page, f"container_fs_{name}", **own)
        assert sample.value == value, name
    [size] = of(page, "container_fs_limit_bytes", **own)
    assert size.value > 0


def test_the_states_of_a_containers_processes(snapshot: Snapshot) -> None:
    page = samples(b"".join(cadvisor_page(snapshot, MachineInfo())).decode())
    states = of(page, "container_tasks_state", container="web")
    assert {s.labels["state"]: s.value for s in states} == {
        "sleeping": 1,
        "running": 1,
        "stopped": 0,
        "uninterruptible": 0,
        "iowaiting": 0,
    }


@pytest.mark.parametrize(
    ("mounts", "shown"),
    [
        ("1 0 8:1 / / rw - ext4 /dev/sda1 rw", {"/dev/sda1": "/"}),
        ("1 0 8:1 / / rw - overlay overlay rw", {}),
        ("1 0 0:9 / /mnt rw - fuse.sshfs host: rw", {}),
        ("1 0 8:2 / /a\\040b rw - xfs /dev/sdb rw", {"/dev/sdb": "/a b"}),
        # Hidden by a file server at the same place, or above it: seen at another one, or not.
        ("1 0 8:2 / /data rw - xfs /dev/sdb rw\n2 1 0:9 / /data rw - nfs4 host:/ rw", {}),
        (
            "1 0 8:2 / /data/x rw - xfs /dev/sdb rw\n2 1 0:9 / /data rw - nfs4 host:/ rw\n"
            "3 1 8:2 /sub /pod rw - xfs /dev/sdb rw",
            {"/dev/sdb": "/pod"},
        ),
        ("nonsense\n\n1 2 - ext4 /dev/sda1", {}),
    ],
)
def test_only_disks_that_can_be_seen_are_measured(mounts: str, shown: dict[str, str]) -> None:
    assert visible_mounts(mounts) == shown


def test_statistics_of_disks_bear_other_lines() -> None:
    assert parse_diskstats("") == parse_diskstats("8 0 sda 1 2") == {}
    assert parse_diskstats("8 0 sda 1 2 3 x 5 6 7 8 9 10 11\n") == {}
    assert parse_diskstats(trees.DISKS)["sda"].io_seconds == 0.65


def test_what_labels_hold_is_escaped() -> None:
    page = Exposition()
    page.add("a", "gauge", "words", 1.0, f'x="{escape(chr(10) + chr(34) + chr(92))}"')
    assert samples(page.text())["a"][0].labels == {"x": '\n"\\'}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (2.5, "2.5"), (1e-9, "1.0000000000000001e-09"), (float("inf"), "+Inf")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
    assert float(text) == value
