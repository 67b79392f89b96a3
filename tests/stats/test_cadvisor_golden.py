"""`/metrics/cadvisor` of a small recorded node, byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from kubelet_trio.stats.read import read_host, read_networks
from kubelet_trio.stats.subjects import find_places
from kubelet_trio.stats.summary import Snapshot
from kubelet_trio.stats.text import number_texts
from kubelet_trio.stats.usage import Cpu
from tests.stats import trees

GOLDEN = Path(__file__).parent / "golden"
NOW = 1_700_000_100.25
OTHER = "d" * 64  # a container without a cgroup, which the runtime reports
BARE = PodUid("99999999-2222-3333-4444-555555555555")  # a pod without cgroups
HOSTS = [
    pytest.param("v1", trees.write_v1, trees.POD_V1, trees.CONTAINER_V1, id="v1"),
    pytest.param("v2", trees.write_v2, trees.POD_V2, trees.CONTAINER_V2, id="v2"),
]
REPORTED = CgroupUsage(
    NOW - 2.5, Cpu(usage=1_234_567_891), Memory(usage=700, inactive_file=50, limit=9000, swap=3)
)


def golden_snapshot(host: Host, pod: str, container: str) -> Snapshot:
    """A node with a pod on cgroups, one that only the runtime knows, and a cgroup of nobody's."""
    ids = ContainerId(trees.CONTAINER), ContainerId(OTHER)
    web = PodSubject(
        PodUid(trees.UID),
        "web-0",
        "prod",
        (ContainerSubject(ids[0], "web", 'reg/"web"\\:1', 101, 1_700_000_010.5, 1_700_000_009.0),),
        SandboxId(trees.SANDBOX),
        1_700_000_005.0,
        1_700_000_004.0,
    )
    bare = PodSubject(BARE, "bare", "prod", (ContainerSubject(ids[1], "c", "img"),))
    root = "/" + pod.split("/")[1]
    reading = read_host(host, [root, "/system.slice"], everything=True, now=NOW)
    # The one thing that is asked of the machine itself.
    disks = tuple(replace(d, capacity=9, used=8, inodes=7, inodes_free=6) for d in reading.disks)
    reading = replace(reading, disks=disks)
    networks = read_networks(host, {web.uid: 101})
    return Snapshot(
        "node",
        root,
        reading,
        (web, bare),
        find_places(
            reading.cgroups,
            (*ids, trees.SANDBOX),
            lambda name: web.uid if "pod1" in name else None,
        ),
        {web.uid: networks[web.uid], bare.uid: networks[web.uid]},
        DiskReading(
            images=Filesystem(NOW, 2000, 1500, 300, 200, 160, 40, device="/dev/sdb"),
            writable={
                ids[0]: Filesystem(NOW, used=70, inodes_used=7),
                ids[1]: Filesystem(NOW, used=71),
            },
        ),
        reported={OTHER: REPORTED},
    )


def golden_host(
    write: Callable[..., Host], base: Path, pod: str, container: str
) -> tuple[Host, Snapshot]:
    sandbox = container.replace(trees.CONTAINER, trees.SANDBOX)
    host = write(
        base, pod, container, sandbox, f"{container}/nested", "/system.slice/agent.service"
    )
    # A sandbox does not have what a container has: no quota, no pressure, no device.
    for mount in host.mounts.values():
        for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.pressure", "io.pressure", "io.stat"):
            Path(f"{mount}{sandbox}/{name}").unlink(missing_ok=True)
    return host, golden_snapshot(host, pod, container)


@pytest.mark.parametrize(("version", "write", "pod", "container"), HOSTS)
def test_the_page_is_what_it_was(
    tmp_path: Path, version: str, write: Callable[..., Host], pod: str, container: str
) -> None:
    _, snapshot = golden_host(write, tmp_path, pod, container)
    machine = MachineInfo(cores=4, kernel="6.1")
    assert (
        b"".join(cadvisor_page(snapshot, machine))
        == (GOLDEN / f"cadvisor-{version}.txt").read_bytes()
    )


def test_a_page_of_nothing_but_the_node(tmp_path: Path) -> None:
    host = trees.write_v2(tmp_path)
    reading = read_host(host, [], everything=True, now=NOW)
    empty = Snapshot(
        "node", "", replace(reading, cgroups={}), (), find_places((), (), lambda _: None)
    )
    page = b"".join(cadvisor_page(empty, MachineInfo())).decode()
    assert 'container_last_seen{container="",id="/",' in page
    assert page.endswith("container_scrape_error 0\n")


@given(st.lists(st.floats(allow_nan=False) | st.integers(0, 10**20)))
def test_numbers_of_a_column_are_written_as_single_ones(values: list[float]) -> None:
    assert number_texts(values) == [str(value).encode() for value in values]
