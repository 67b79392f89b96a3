from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.cgroups import (
    UNLIMITED,
    CgroupDriver,
    CgroupError,
    CgroupHost,
    CgroupLimits,
    CgroupTree,
    cgroup_host,
    cgroup_path,
    shares_in,
)
from kubelet_trio.model import inline_offload, thread_offload
from tests.cgroups.tree import record

POD = ("kubepods", "burstable", "pod5ba8")
DRIVERS: tuple[CgroupDriver, ...] = ("cgroupfs", "systemd")


@pytest.mark.parametrize("driver", DRIVERS)
async def test_limits_of_version_2_are_read_as_they_were_written(
    tmp_path: Path, driver: CgroupDriver
) -> None:
    cgroups = CgroupTree(record(tmp_path, cgroup_path(POD, driver)), driver, inline_offload)
    assert await cgroups.read(POD) == CgroupLimits(2598, UNLIMITED, 100_000, UNLIMITED)
    limits = CgroupLimits(512, 50_000, 100_000, 64 << 20)
    await cgroups.apply(POD, limits)
    found = await cgroups.read(POD)
    assert found is not None
    assert found.cpu_shares is not None
    assert shares_in(found.cpu_shares, 2) == shares_in(512, 2)
    assert (found.cpu_quota, found.cpu_period, found.memory) == (50_000, 100_000, 64 << 20)
    assert await cgroups.memory_usage(POD) == 4096


# The kernel's values for "no limit", as x86 and arm64 with 64 KiB pages have them.
@pytest.mark.parametrize("no_limit", [9223372036854771712, 9223372036854710272])
async def test_limits_of_version_1_are_read_from_their_hierarchies(
    tmp_path: Path, no_limit: int
) -> None:
    host = CgroupHost(1, {"cpu": tmp_path / "cpu", "memory": tmp_path / "memory"})
    files = {
        "cpu/cpu.shares": "1024",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": str(no_limit),
        "memory/memory.usage_in_bytes": "8192",
    }
    for name, text in files.items():
        controller, _, file = name.partition("/")
        there = tmp_path.joinpath(controller, *POD)
        there.mkdir(parents=True, exist_ok=True)
        (there / file).write_text(text + "\n")
    cgroups = CgroupTree(host, "cgroupfs", inline_offload)
    assert await cgroups.read(POD) == CgroupLimits(1024, UNLIMITED, 100_000, UNLIMITED)
    await cgroups.apply(POD, CgroupLimits(2, 5_000, 50_000, 4096))
    assert await cgroups.read(POD) == CgroupLimits(2, 5_000, 50_000, 4096)
    assert await cgroups.memory_usage(POD) == 8192


async def test_a_missing_controller_limits_nothing_and_a_missing_cgroup_is_none(
    tmp_path: Path,
) -> None:
    host = record(tmp_path, "/".join(POD))
    for version in (1, 2):
        mounts = {"": tmp_path} if version == 2 else {"memory": tmp_path}
        cgroups = CgroupTree(CgroupHost(version, mounts), "cgroupfs", inline_offload)
        assert await cgroups.read(("kubepods", "podnone")) is None
        (tmp_path / "kubepods/podbare").mkdir(exist_ok=True)
        assert await cgroups.read(("kubepods", "podbare")) == CgroupLimits()
        assert await cgroups.memory_usage(("kubepods", "podbare")) is None
    assert host.version == 2


async def test_what_cannot_be_read_is_an_error_with_its_file(tmp_path: Path) -> None:
    host = record(tmp_path, "/".join(POD))
    file = tmp_path.joinpath(*POD, "memory.max")
    file.unlink()
    file.mkdir()
    with pytest.raises(CgroupError, match=f"cannot read {file}: Is a directory"):
        await CgroupTree(host, "cgroupfs", inline_offload).read(POD)


@pytest.fixture
def real() -> Iterator[CgroupTree]:
    host = cgroup_host()
    root = f"/kt-{uuid.uuid4().hex[:8]}"
    try:
        for mount in host.hierarchies():
            (mount / root[1:]).mkdir()
    except OSError as exc:
        pytest.skip(f"cgroups cannot be made here: {exc}")
    yield CgroupTree(host, "cgroupfs", thread_offload, root)
    for mount in host.hierarchies():
        for here, _, _ in os.walk(mount / root[1:], topdown=False):
            os.rmdir(here)


async def test_a_real_kernel_gives_back_what_was_written_and_no_limit_as_none(
    real: CgroupTree,
) -> None:
    name = (real.root[1:], *POD)
    limits = CgroupLimits(512, 50_000, 100_000, 64 << 20)
    free = CgroupLimits(1024, UNLIMITED, 100_000, UNLIMITED)
    for wanted in (limits, free, limits):
        written = await real.apply(name, wanted)
        if written.missing or written.failures:
            pytest.skip(f"this machine has no such limits: {written}")
        found = await real.read(name)
        assert found is not None
        assert found.cpu_shares is not None
        assert wanted.cpu_shares is not None
        version = real.host.version
        assert shares_in(found.cpu_shares, version) == shares_in(wanted.cpu_shares, version)
        assert (found.cpu_quota, found.cpu_period) == (wanted.cpu_quota, wanted.cpu_period)
        assert found.memory == wanted.memory
