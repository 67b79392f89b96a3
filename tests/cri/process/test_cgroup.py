"""From CRI's resources to cgroup files, on both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.cri import v1
from kubelet_trio.cri.process.cgroup import (
    cgroup_paths,
    change_cgroup,
    make_cgroup,
    remove_cgroup,
    settings_v1,
    settings_v2,
)

EVERYTHING = v1.LinuxContainerResources(
    cpu_shares=1024,
    cpu_quota=50_000,
    cpu_period=100_000,
    memory_limit_in_bytes=1 << 20,
    memory_swap_limit_in_bytes=2 << 20,
    unified={"memory.oom.group": "1"},
)


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "cgroup.subtree_control").touch()
    return tmp_path


def test_version_1_is_written_per_controller() -> None:
    assert settings_v1(EVERYTHING) == {
        "cpu.shares": "1024",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "50000",
        "memory.limit_in_bytes": str(1 << 20),
        "memory.memsw.limit_in_bytes": str(2 << 20),
    }


def test_version_2_has_weights_and_what_is_given_for_it_alone() -> None:
    assert settings_v2(EVERYTHING) == {
        "cpu.weight": "39",
        "cpu.max": "50000 100000",
        "memory.max": str(1 << 20),
        "memory.oom.group": "1",
    }


@pytest.mark.parametrize(("shares", "weight"), [(2, "1"), (262144, "10000"), (102, "4")])
def test_weights_span_what_shares_do(shares: int, weight: str) -> None:
    resources = v1.LinuxContainerResources(cpu_shares=shares)
    assert settings_v2(resources) == {"cpu.weight": weight}


def test_nothing_is_written_for_no_limits() -> None:
    assert settings_v1(v1.LinuxContainerResources()) == {}
    assert settings_v2(v1.LinuxContainerResources()) == {}


def test_a_cgroup_lies_below_its_pods(unified: Path) -> None:
    (path,) = cgroup_paths("/kubepods/pod1", "c1", unified)
    assert path == unified / "kubepods" / "pod1" / "c1"


def test_what_cannot_be_set_is_told_and_does_not_stop_the_rest(unified: Path) -> None:
    # A directory of no cgroup file system has none of the files.
    place = make_cgroup("/kubepods/pod1", "c1", EVERYTHING, unified)
    assert "memory.max: the cgroup has no such file" in place.failures
    assert place.procs == [str(unified / "kubepods/pod1/c1/cgroup.procs")]
    assert (place.kill_file, place.oom_file) == ("", "")
    (place.directories[0] / "cgroup.kill").touch()
    (place.directories[0] / "memory.events").touch()
    assert place.kill_file.endswith("/c1/cgroup.kill")
    assert place.oom_file.endswith("/c1/memory.events")


def test_a_removed_cgroup_may_be_removed_again(unified: Path) -> None:
    place = make_cgroup("/kubepods/pod1", "c1", v1.LinuxContainerResources(), unified)
    remove_cgroup(place.directories)
    remove_cgroup(place.directories)
    assert not place.directories[0].exists()


def test_where_there_are_no_cgroups_none_are_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_cgroup("/kubepods", "c1", EVERYTHING, tmp_path)


def test_minus_one_is_no_limit() -> None:
    resources = v1.LinuxContainerResources(
        cpu_quota=-1, cpu_period=100_000, memory_limit_in_bytes=-1, memory_swap_limit_in_bytes=-1
    )
    assert settings_v2(resources) == {"cpu.max": "max 100000", "memory.max": "max"}
    assert settings_v1(resources) == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "-1",
        "memory.limit_in_bytes": "-1",
        "memory.memsw.limit_in_bytes": "-1",
    }


MEMORY, MEMSW = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        (10, 20, [MEMSW, MEMORY]),
        (20, 10, [MEMORY, MEMSW]),
        (20, 20, [MEMORY, MEMSW]),
        (20, -1, [MEMSW, MEMORY]),
        (-1, 20, [MEMORY, MEMSW]),
        (0, 20, [MEMORY, MEMSW]),
    ],
)
def test_memory_and_swap_is_never_less_than_memory(
    before: int, after: int, order: list[str]
) -> None:
    settings = settings_v1(memory_of(after), before=memory_of(before))
    assert list(settings) == order


def memory_of(limit: int) -> v1.LinuxContainerResources:
    return v1.LinuxContainerResources(memory_limit_in_bytes=limit, memory_swap_limit_in_bytes=limit)


def test_a_change_is_written_to_what_exists(unified: Path) -> None:
    place = make_cgroup("/kubepods/pod1", "c1", v1.LinuxContainerResources(), unified)
    (cgroup,) = place.directories
    (cgroup / "cpu.weight").write_text("1\n")
    (cgroup / "memory.max").write_text("max\n")
    change_cgroup(place.directories, v1.LinuxContainerResources(), EVERYTHING, unified)
    assert (cgroup / "cpu.weight").read_text().strip() == "39"
    assert (cgroup / "memory.max").read_text() == str(1 << 20)
    assert not (cgroup / "cpu.max").exists()


def test_a_change_that_is_refused_is_taken_back(unified: Path) -> None:
    place = make_cgroup("/kubepods/pod1", "c1", v1.LinuxContainerResources(), unified)
    (cgroup,) = place.directories
    (cgroup / "cpu.weight").write_text("77")
    # It can be read, and every write to it fails, as with a limit that the kernel refuses.
    (cgroup / "memory.max").symlink_to("/proc/version")
    with pytest.raises(OSError, match=r"memory\.max"):
        change_cgroup(place.directories, v1.LinuxContainerResources(), EVERYTHING, unified)
    assert (cgroup / "cpu.weight").read_text() == "77"
