from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.cgroups import (
    CgroupBusyError,
    CgroupError,
    CgroupHost,
    CgroupLimits,
    CgroupsDeniedError,
    CgroupTree,
    Written,
    cgroup_host,
)
from kubelet_trio.model import PodUid, inline_offload, thread_offload
from tests.cgroups.tree import changed, record

LIMITS = CgroupLimits(512, 50_000, 100_000, 64 << 20, 500, {"2MB": 0}, {"memory.low": "4096"})
POD = ("kubepods", "burstable", "pod5ba8")


async def test_limits_are_written_to_a_cgroup_of_version_2(tmp_path: Path) -> None:
    host = record(tmp_path, "kubepods/burstable/pod5ba8")
    written = await CgroupTree(host, "cgroupfs", inline_offload).apply(POD, LIMITS)
    assert not written.failures
    assert not written.missing
    assert changed(tmp_path, "kubepods/burstable/pod5ba8") == {
        "cpu.weight": "20",
        "cpu.max": "50000 100000",
        "memory.low": "4096",
        "memory.max": "67108864",
        "pids.max": "500",
        "hugetlb.2MB.max": "0",
        "hugetlb.2MB.rsvd.max": "0",
    }


async def test_a_kernel_without_limits_of_reserved_huge_pages_is_no_trouble(tmp_path: Path) -> None:
    host = record(tmp_path, "kubepods/burstable/pod5ba8")
    here = tmp_path / "kubepods/burstable/pod5ba8"
    (here / "hugetlb.2MB.rsvd.max").unlink()
    written = await CgroupTree(host, "cgroupfs", inline_offload).apply(POD, LIMITS)
    assert written == Written()
    assert (here / "hugetlb.2MB.max").read_text() == "0"
    assert not (here / "hugetlb.2MB.rsvd.max").exists()


async def test_every_level_hands_its_controllers_down(tmp_path: Path) -> None:
    host = record(tmp_path, "kubepods/burstable/pod5ba8")
    await CgroupTree(host, "cgroupfs", inline_offload).apply(POD, LIMITS)
    # Of the recording's plain file the last write is what stays.
    assert changed(tmp_path, "kubepods")["cgroup.subtree_control"] == "+hugetlb"
    assert changed(tmp_path, "kubepods/burstable")["cgroup.subtree_control"] == "+hugetlb"
    assert "cgroup.subtree_control" not in changed(tmp_path, "kubepods/burstable/pod5ba8")


async def test_controllers_that_are_missing_are_told_and_cost_nothing_else(tmp_path: Path) -> None:
    host = record(tmp_path, "kubepods")
    written = await CgroupTree(host, "cgroupfs", inline_offload).apply(POD, LIMITS)
    assert written.missing == {"cpu", "memory", "pids", "hugetlb"}
    assert not written.failures
    v1 = CgroupHost(1, {"cpu": tmp_path / "cpu", "name=systemd": tmp_path / "systemd"})
    (tmp_path / "cpu").mkdir()
    written = await CgroupTree(v1, "cgroupfs", inline_offload).apply(POD, LIMITS)
    assert written.missing == {"cpu", "memory", "pids", "hugetlb"}
    assert (tmp_path / "cpu" / "kubepods" / "burstable" / "pod5ba8").is_dir()
    assert not (tmp_path / "systemd").exists()


async def test_a_file_system_that_refuses_is_told_apart(tmp_path: Path) -> None:
    proc = CgroupHost(1, {"cpu": Path("/proc")})  # nobody makes directories there
    with pytest.raises(CgroupError, match="cannot make cgroup /proc/kubepods"):
        await CgroupTree(proc, "cgroupfs", inline_offload).apply(POD, LIMITS)


async def test_a_file_system_that_is_not_ours_denies() -> None:
    sysfs = CgroupHost(1, {"cpu": Path("/sys")})  # not even root may
    with pytest.raises(CgroupsDeniedError, match="cannot make cgroup /sys/kubepods"):
        await CgroupTree(sysfs, "cgroupfs", inline_offload).apply(POD, LIMITS)


# On this machine's own cgroups, below a root of the test's own.


@pytest.fixture
def real() -> Iterator[CgroupTree]:
    host = cgroup_host()
    if host.version != 1 or not {"cpu", "memory", "pids"} <= host.mounts.keys():
        pytest.skip("this machine's cgroups are not of version 1")
    root = f"/kt-{uuid.uuid4().hex[:8]}"
    try:
        (host.mounts["cpu"] / root[1:]).mkdir()
    except OSError as exc:
        pytest.skip(f"cgroups cannot be made here: {exc}")
    yield CgroupTree(host, "cgroupfs", thread_offload, root)
    for mount in host.hierarchies():
        for here, _, _ in os.walk(mount / root[1:], topdown=False):
            os.rmdir(here)


def value(cgroups: CgroupTree, controller: str, name: tuple[str, ...], file: str) -> str:
    return cgroups.host.mounts[controller].joinpath(*name, file).read_text().strip()


async def test_a_real_kernel_takes_the_limits_again_and_again(real: CgroupTree) -> None:
    name = (real.root[1:], *POD)
    for _ in range(2):
        written = await real.apply(name, LIMITS)
        assert not written.failures
        assert written.missing <= {"hugetlb"}
    assert value(real, "cpu", name, "cpu.shares") == "512"
    assert value(real, "cpu", name, "cpu.cfs_quota_us") == "50000"
    assert value(real, "memory", name, "memory.limit_in_bytes") == str(64 << 20)
    assert value(real, "pids", name, "pids.max") == "500"
    if "cpuset" in real.host.mounts:  # or no process could be put there
        assert value(real, "cpuset", name, "cpuset.cpus")
        assert value(real, "cpuset", name, "cpuset.mems")
    assert await real.exists("/" + "/".join(name))
    assert await real.memory_usage(name) == 0
    assert await real.list_pods() == {"5ba8"}
    await real.remove_empty(PodUid("5ba8"))
    assert await real.list_pods() == frozenset()
    assert not await real.exists("/" + "/".join(name))


async def test_what_the_kernel_refuses_is_told_with_file_and_value(real: CgroupTree) -> None:
    name = (real.root[1:], *POD)
    written = await real.apply(name, CgroupLimits(cpu_period=5, cpu_quota=1_000, pids=7))
    assert any("cannot write '5' to " in failure for failure in written.failures)
    assert value(real, "pids", name, "pids.max") == "7"
    gone = await real.limit("/kt-none/kubepods", LIMITS)
    assert all(failure.endswith(" is gone") for failure in gone.failures)


async def test_a_cgroup_in_use_is_not_removed_as_an_empty_one(real: CgroupTree) -> None:
    name = (real.root[1:], *POD)
    await real.apply(name, LIMITS)
    place = real.host.mounts["pids"].joinpath(*name)
    with subprocess.Popen(["sleep", "1000"]) as child:  # noqa: ASYNC220  # returns at once
        (place / "cgroup.procs").write_text(str(child.pid))
        with pytest.raises(CgroupBusyError):
            await real.remove_empty(PodUid("5ba8"))
        assert child.poll() is None
        child.kill()
    await real.remove(PodUid("5ba8"))
    assert not place.exists()
