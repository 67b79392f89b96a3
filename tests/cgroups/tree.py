"""A cgroup version 2 file system in plain files, as recorded on a node with systemd.

The kernel makes a cgroup's files with its directory; here they are there beforehand for
every cgroup of the recording, and a new directory stays empty: a machine without controllers.
"""

from __future__ import annotations

from pathlib import Path

from kubelet_trio.cgroups import CgroupHost

CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc"
# What systemd hands down by itself; the rest is for whoever needs it to ask for.
HANDED_DOWN = "cpu io memory pids"
FILES = {
    "cgroup.procs": "",
    "cgroup.controllers": CONTROLLERS,
    "cgroup.subtree_control": "",
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.current": "4096",
    "pids.max": "max",
    "hugetlb.2MB.max": "max",
    "hugetlb.1GB.max": "max",
    "hugetlb.2MB.rsvd.max": "max",
    "hugetlb.1GB.rsvd.max": "max",
}
ROOT_FILES = {
    "cgroup.procs": "1\n",
    "cgroup.controllers": CONTROLLERS,
    "cgroup.subtree_control": HANDED_DOWN,
}


def record(root: Path, *cgroups: str) -> CgroupHost:
    """Write the tree with these cgroups in it, and return the host it is of."""
    root.mkdir(exist_ok=True)
    _fill(root, ROOT_FILES)
    for cgroup in cgroups:
        here = root
        for part in cgroup.strip("/").split("/"):
            here = here / part
            if not here.exists():
                here.mkdir()
                _fill(here, FILES)
    return CgroupHost(2, {"": root})


def changed(root: Path, cgroup: str) -> dict[str, str]:
    """Return the files of a cgroup that are not as recorded."""
    here = root / cgroup.strip("/")
    there = (name for name in FILES if (here / name).exists())
    return {n: text for n in there if (text := (here / n).read_text()) != FILES[n]}


def _fill(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_text(text)
