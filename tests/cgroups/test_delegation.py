"""Which cgroups may be written, on trees of plain files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kubelet_trio.cgroups import CgroupHost, Delegation, find_delegation

ALL = "cpuset cpu io memory pids\n"


def unified(top: Path, *, given: str = ALL, passed: str = "", procs: str = "", typed: bool) -> Path:
    """Make what the kernel shows of a cgroup of version 2; the real root has no type."""
    top.mkdir(parents=True)
    (top / "cgroup.controllers").write_text(given)
    (top / "cgroup.subtree_control").write_text(passed)
    (top / "cgroup.procs").write_text(procs)
    if typed:
        (top / "cgroup.type").write_text("domain\n")
    return top


BUSY = frozenset({"cpu", "cpuset", "memory", "pids"})


@pytest.mark.parametrize(
    ("given", "passed", "procs", "typed", "expected"),
    [
        (ALL, "", "", True, Delegation()),
        (ALL, "", "1\n2\n", False, Delegation()),  # the root of the hierarchy
        ("memory pids\n", "", "", True, Delegation(missing=frozenset({"cpu", "cpuset"}))),
        ("", "", "", True, Delegation(missing=BUSY)),
        (ALL, "", "7\n", True, Delegation(busy=BUSY)),
        (ALL, "cpu memory\n", "7\n", True, Delegation(busy=frozenset({"cpuset", "pids"}))),
        (
            "memory pids\n",
            "pids\n",
            "7\n",
            True,
            Delegation(missing=frozenset({"cpu", "cpuset"}), busy=frozenset({"memory"})),
        ),
    ],
)
def test_of_version_2_the_controllers_count_that_can_be_passed_on(
    tmp_path: Path, given: str, passed: str, procs: str, typed: bool, expected: Delegation
) -> None:
    top = unified(tmp_path / "cg", given=given, passed=passed, procs=procs, typed=typed)
    assert find_delegation(CgroupHost(2, {"": top}), "", "cgroupfs") == expected


def test_the_cgroup_root_is_looked_at_not_the_top(tmp_path: Path) -> None:
    top = unified(tmp_path / "cg", given="", typed=False)
    unified(top / "mine", typed=True)
    assert find_delegation(CgroupHost(2, {"": top}), "/mine", "cgroupfs") == Delegation()
    host = CgroupHost(2, {"": top})
    assert find_delegation(host, "/none", "cgroupfs") == Delegation(denied=str(top / "none"))


def test_on_version_1_every_hierarchy_must_be_writable(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
    mounts = {"cpu": tmp_path / "cpu", "memory": tmp_path / "memory"}
    assert find_delegation(CgroupHost(1, mounts), "", "cgroupfs") == Delegation()
    (tmp_path / "memory").rmdir()
    denied = Delegation(denied=str(tmp_path / "memory"))
    assert find_delegation(CgroupHost(1, mounts), "", "cgroupfs") == denied


_AS_ANOTHER = """
import os, sys
from pathlib import Path
from kubelet_trio.cgroups import CgroupHost, find_delegation
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
print(find_delegation(CgroupHost(2, {"": Path(sys.argv[1])}), "", "cgroupfs").denied)
"""


def test_what_another_user_owns_is_denied(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user that does not own the directory")
    for directory in (tmp_path, *tmp_path.parents[:-2]):  # searchable on the way, not writable
        directory.chmod(directory.stat().st_mode | 0o055)
    top = unified(tmp_path / "cg", typed=True)
    ran = [sys.executable, "-c", _AS_ANOTHER, str(top)]
    assert subprocess.run(ran, capture_output=True, check=True, text=True).stdout == f"{top}\n"
