from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.cgroups import (
    CgroupError,
    CgroupHost,
    cgroup_host,
    is_in_cgroup,
    move_process,
    user_processes,
)
from kubelet_trio.cgroups.pods import remove_cgroup
from kubelet_trio.cgroups.processes import parse_process_cgroups, process_directories


def test_a_processes_cgroups_are_read_by_controller() -> None:
    text = "5:cpu,cpuacct:/a/b\n1:name=systemd:/user.slice/x:y\n0::/init.scope\n"
    assert parse_process_cgroups(text) == {
        "cpu": "/a/b",
        "cpuacct": "/a/b",
        "name=systemd": "/user.slice/x:y",
        "": "/init.scope",
    }


def test_every_hierarchy_counts_but_the_unified_one_of_a_hybrid_machine(tmp_path: Path) -> None:
    mounts = {"cpu": tmp_path / "cpu", "name=systemd": tmp_path / "sd", "": tmp_path / "unified"}
    one, two = CgroupHost(1, mounts), CgroupHost(2, {"": tmp_path})
    assert process_directories(one, "/kubelet") == {
        "cpu": tmp_path / "cpu/kubelet",
        "name=systemd": tmp_path / "sd/kubelet",
    }
    assert process_directories(two, "/kubelet") == {"": tmp_path / "kubelet"}


@pytest.mark.parametrize(
    ("cgroups", "there"),
    [
        ("2:memory:/kubelet\n1:cpu:/kubelet\n", True),
        ("2:memory:/kubelet\n1:cpu:/\n", False),
        ("1:cpu:/kubelet\n", False),
        ("3:name=systemd:/kubelet\n2:memory:/\n1:cpu:/\n", True),  # a unit without accounting
        ("3:name=systemd:/\n2:memory:/kubelet\n1:cpu:/kubelet\n", False),
    ],
)
def test_systemd_says_where_a_process_is_and_else_cpu_and_memory(
    tmp_path: Path, cgroups: str, there: bool
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(cgroups)
    host = CgroupHost(1, {"cpu": tmp_path / "cpu", "memory": tmp_path / "memory"})
    for written in ("/kubelet", "kubelet", "/kubelet/"):
        assert is_in_cgroup(host, written, 7, tmp_path) is there


def test_init_and_kernel_threads_are_no_user_processes(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n2\n30\n31\n")
    for pid, program in ((1, "/sbin/init"), (2, ""), (30, "/bin/a"), (31, "/bin/b")):
        (tmp_path / str(pid)).mkdir()
        if program:
            (tmp_path / str(pid) / "exe").symlink_to(program)
    assert user_processes(CgroupHost(2, {"": tmp_path}), "/", tmp_path) == [30, 31]


def test_a_cgroup_that_takes_no_processes_is_named(tmp_path: Path) -> None:
    with pytest.raises(CgroupError, match=r"cannot write 7 to .*/kubelet/cgroup\.procs: No such"):
        move_process(CgroupHost(2, {"": tmp_path}), "/kubelet", 7)


@pytest.fixture
def cgroup() -> Iterator[str]:
    """A cgroup that is not there yet, on a machine that lets us make one."""
    host = cgroup_host()
    if os.getuid() or not all(os.access(m, os.W_OK) for m in host.hierarchies()):
        pytest.skip("needs root, and cgroups that can be written")
    name = f"/kubelet-trio-test-{uuid.uuid4().hex[:8]}"
    yield name
    for directory in process_directories(host, name).values():
        remove_cgroup(directory)


def test_the_kernel_moves_a_process_in_every_hierarchy(cgroup: str) -> None:
    host = cgroup_host()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert not is_in_cgroup(host, cgroup, process.pid)
            move_process(host, cgroup, process.pid)
            assert is_in_cgroup(host, cgroup, process.pid)
            found = parse_process_cgroups(Path(f"/proc/{process.pid}/cgroup").read_text())
            assert {found[name] for name in process_directories(host, cgroup)} == {cgroup}
            assert user_processes(host, cgroup) == [process.pid]
        finally:
            process.kill()
    move_process(host, cgroup, process.pid)  # it has ended: nothing to move
