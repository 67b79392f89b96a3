from __future__ import annotations

from pathlib import Path

from kubelet_trio.cgroups import (
    CgroupHost,
    cgroup_version,
    has_swap_controller,
    parse_cgroup_mounts,
)
from kubelet_trio.cgroups.detect import is_swap_on

ROOT = Path("/sys/fs/cgroup")
V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
50 31 0:32 / /other/memory rw,relatime - cgroup cgroup rw,memory
"""
HYBRID = V1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_1_has_a_mount_for_each_set_of_controllers() -> None:
    host = parse_cgroup_mounts(V1)
    assert host.version == 1
    assert host.mounts["cpu"] == host.mounts["cpuacct"] == ROOT / "cpu,cpuacct"
    assert host.mounts["name=systemd"] == ROOT / "systemd"
    assert host.hierarchies() == [ROOT / "cpu,cpuacct", ROOT / "memory", ROOT / "systemd"]


def test_hybrid_counts_as_version_1() -> None:
    host = parse_cgroup_mounts(HYBRID)
    assert host.version == 1
    assert ROOT / "unified" in host.hierarchies()


def test_version_2_has_one_hierarchy() -> None:
    assert parse_cgroup_mounts(V2) == CgroupHost(2, {"": ROOT})


def test_a_host_without_cgroups_is_version_1_with_none() -> None:
    assert parse_cgroup_mounts("") == CgroupHost(1)


def test_this_machine_has_one_of_the_two() -> None:
    assert cgroup_version() in (1, 2)


def test_swap_is_on_if_the_kernel_lists_any(tmp_path: Path) -> None:
    swaps = tmp_path / "swaps"
    assert not is_swap_on(swaps)
    swaps.write_text("Filename Type Size Used Priority\n")
    assert not is_swap_on(swaps)
    swaps.write_text("Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n")
    assert is_swap_on(swaps)


def test_the_swap_controller_is_where_its_file_is(tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.write_text("0::/system.slice/agent.service\n")
    two = CgroupHost(2, {"": tmp_path / "v2"})
    assert not has_swap_controller(two, own)
    (tmp_path / "v2/system.slice/agent.service").mkdir(parents=True)
    (tmp_path / "v2/system.slice/agent.service/memory.swap.max").touch()
    assert has_swap_controller(two, own)
    own.write_text("0::/../agent.service\n")  # entered a cgroup namespace from outside
    assert not has_swap_controller(two, own)
    (tmp_path / "v2/memory.swap.max").touch()
    assert has_swap_controller(two, own)
    one = CgroupHost(1, {"memory": tmp_path / "memory"})
    assert not has_swap_controller(one)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.memsw.limit_in_bytes").touch()
    assert has_swap_controller(one)
    assert not has_swap_controller(CgroupHost(1))
