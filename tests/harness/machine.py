"""Whether this machine can run real containers; `python -m` says what it lacks."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

CNI_DIRS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
# A slow machine (an emulated one) gets its deadlines times this.
PATIENCE = float(os.environ.get("KUBELET_TRIO_TEST_PATIENCE", "1"))
# What agents and their containerd make cgroups with; systemd's needs to be process 1.
CGROUP_DRIVER = os.environ.get("KUBELET_TRIO_TEST_CGROUP_DRIVER", "cgroupfs")
PROGRAMS = ("runc", "gcc", "iptables", "ip")
# Another containerd than the one on the path; its `ctr` and its shim are beside it.
CONTAINERD = os.environ.get("KUBELET_TRIO_CONTAINERD", "containerd")


def cni_bin_dir() -> Path | None:
    """Return the directory that holds all CNI plugins that the harness uses."""
    return next((d for d in CNI_DIRS if all((d / p).exists() for p in CNI_PLUGINS)), None)


def busybox() -> Path | None:
    """Return a statically linked busybox of the host."""
    found = shutil.which("busybox")
    return Path(found) if found else None


def ctr() -> str:
    """Return the `ctr` of the containerd that the harness runs."""
    directory = os.path.dirname(CONTAINERD)
    return os.path.join(directory, "ctr") if directory else "ctr"


def missing() -> list[str]:
    """Return what keeps this machine from running the harness, one phrase each."""
    programs = (CONTAINERD, ctr(), *PROGRAMS)
    lacks = [f"no {program}" for program in programs if shutil.which(program) is None]
    if sys.platform != "linux":
        lacks.append("not Linux")
    elif os.geteuid() != 0:
        lacks.append("not root")
    if cni_bin_dir() is None:
        lacks.append("no CNI plugins")
    if busybox() is None:
        lacks.append("no busybox")
    if not Path("/sys/fs/cgroup").is_dir():
        lacks.append("no cgroups")
    return lacks


if __name__ == "__main__":
    found = missing()
    if found:
        print(", ".join(found), file=sys.stderr)
    sys.exit(bool(found))
