from __future__ import annotations

import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from kubelet_trio.cgroups import (
    CgroupDriver,
    CgroupHost,
    CgroupLimits,
    CgroupTree,
    cgroup_host,
    missing_cgroup_root,
)
from kubelet_trio.model import PodUid, inline_offload, thread_offload

UID = PodUid("5ba8fe55-1c2d")


class FakeUnits:
    """What systemd was asked for."""

    def __init__(self) -> None:
        self.started: list[tuple[str, CgroupLimits]] = []
        self.stopped: list[str] = []

    async def start_slice(self, unit: str, limits: CgroupLimits) -> None:
        self.started.append((unit, limits))

    async def limit_slice(self, unit: str, limits: CgroupLimits) -> None:
        self.started.append((unit, limits))

    async def stop_slice(self, unit: str) -> None:
        self.stopped.append(unit)


def host(root: Path) -> CgroupHost:
    return CgroupHost(1, {"cpu": root / "cpu", "memory": root / "memory"})


async def test_a_pods_cgroup_goes_in_every_hierarchy(tmp_path: Path) -> None:
    cgroups = CgroupTree(host(tmp_path), "cgroupfs", inline_offload)
    for hierarchy in ("cpu", "memory"):
        (tmp_path / hierarchy / f"kubepods/burstable/pod{UID}/container/nested").mkdir(parents=True)
        (tmp_path / hierarchy / "kubepods/burstable/podother").mkdir()
    await cgroups.remove(UID)
    await cgroups.remove(UID)
    assert await cgroups.list_pods() == {"other"}


async def test_a_pods_cgroup_is_found_under_any_class(tmp_path: Path) -> None:
    cgroups = CgroupTree(host(tmp_path), "cgroupfs", inline_offload, root="/edge")
    (tmp_path / f"cpu/edge/kubepods/pod{UID}").mkdir(parents=True)
    (tmp_path / "cpu/edge/kubepods/besteffort/podx").mkdir(parents=True)
    assert await cgroups.list_pods() == {UID, "x"}
    await cgroups.remove(UID)
    assert await cgroups.list_pods() == {"x"}


async def test_a_pods_cgroup_is_limited_under_any_class(tmp_path: Path) -> None:
    cgroups = CgroupTree(host(tmp_path), "cgroupfs", inline_offload, root="/edge")
    there = tmp_path / f"cpu/edge/kubepods/besteffort/pod{UID}"
    there.mkdir(parents=True)
    (there / "cpu.shares").write_text("1024")
    await cgroups.limit_pod(UID, CgroupLimits(cpu_shares=2))
    await cgroups.limit_pod(PodUid("nobody"), CgroupLimits(cpu_shares=2))
    assert (there / "cpu.shares").read_text() == "2"


async def test_systemd_forgets_a_slice_once_it_is_gone(tmp_path: Path) -> None:
    units = FakeUnits()
    cgroups = CgroupTree(CgroupHost(2, {"": tmp_path}), "systemd", inline_offload, units=units)
    name = "kubepods-besteffort-pod5ba8fe55_1c2d.slice"
    (tmp_path / "kubepods.slice/kubepods-besteffort.slice" / name).mkdir(parents=True)
    assert await cgroups.list_pods() == {UID}
    await cgroups.remove(UID)
    await cgroups.remove(UID)
    assert units.stopped == [name]
    assert await cgroups.list_pods() == frozenset()


async def test_what_the_kernel_refuses_is_no_property_of_the_slice(tmp_path: Path) -> None:
    # Or systemd would write it once the kernel accepts it: at a daemon-reload, days later.
    units = FakeUnits()
    cgroups = CgroupTree(CgroupHost(2, {"": tmp_path}), "systemd", inline_offload, units=units)
    path = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
    there = tmp_path / path.lstrip("/")
    there.mkdir(parents=True)
    (there / "memory.max").mkdir()  # takes no value, whoever writes it
    written = await cgroups.limit(path, CgroupLimits(memory=4096))
    assert [f"to {there}/memory.max: Is a directory" in text for text in written.failures] == [True]
    assert units.started == []
    (there / "memory.max").rmdir()
    (there / "memory.max").write_text("max")
    assert not (await cgroups.limit(path, CgroupLimits(memory=4096))).failures
    assert units.started == [(Path(path).name, CgroupLimits(memory=4096))]
    assert (there / "memory.max").read_text() == "4096"


async def test_no_cgroups_at_all_is_no_error(tmp_path: Path) -> None:
    cgroups = CgroupTree(host(tmp_path), "cgroupfs", inline_offload)
    assert await cgroups.list_pods() == frozenset()
    await cgroups.remove(UID)


async def test_what_is_left_in_a_real_cgroup_is_killed_and_nothing_else() -> None:
    machine = cgroup_host()
    root = f"kubelet-trio-test-{uuid.uuid4().hex[:8]}"
    mounts = (
        {"": machine.mounts[""]}
        if machine.version == 2
        else {"pids": machine.mounts.get("pids", Path("/nonexistent"))}
    )
    (hierarchy,) = mounts.values()
    place = hierarchy / root / f"kubepods/besteffort/pod{UID}"
    try:
        place.mkdir(parents=True)
    except OSError as exc:
        pytest.skip(f"cgroups cannot be made here: {exc}")
    cgroups = CgroupTree(
        CgroupHost(machine.version, mounts), "cgroupfs", thread_offload, root=f"/{root}"
    )
    inner = place / "container"
    inner.mkdir()
    sleep = ["sleep", "1000"]
    with subprocess.Popen(sleep) as lost, subprocess.Popen(sleep) as other:  # noqa: ASYNC220  # returns at once
        try:
            (inner / "cgroup.procs").write_text(str(lost.pid))
            await cgroups.remove(UID)
            assert lost.wait(5) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            lost.kill()
            other.kill()
    assert not place.exists()
    for left in (place.parent, place.parent.parent, hierarchy / root):
        os.rmdir(left)


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
@pytest.mark.parametrize(
    ("made", "missing"),
    [
        (["cpu/edge", "memory/edge"], []),
        (["cpu/edge.slice", "memory/edge.slice"], []),
        (["cpu/edge"], ["memory"]),
        ([], ["cpu", "memory"]),
    ],
)
def test_a_cgroup_root_has_to_be_in_every_hierarchy_under_one_drivers_name(
    tmp_path: Path, driver: CgroupDriver, made: list[str], missing: list[str]
) -> None:
    for directory in made:
        (tmp_path / directory).mkdir(parents=True)
    found = missing_cgroup_root(host(tmp_path), "/edge", driver)
    if driver == "cgroupfs" or not missing:
        assert [path.parent.name for path in found] == missing
    else:
        assert [path.name for path in found] == ["edge.slice"] * 2


def test_the_root_of_the_tree_is_always_there(tmp_path: Path) -> None:
    for controller in ("cpu", "memory"):
        (tmp_path / controller).mkdir()
    assert missing_cgroup_root(host(tmp_path), "", "cgroupfs") == []
