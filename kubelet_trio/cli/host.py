"""Facts about the host for `run`, and settings of the agent's own process."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from kubelet_trio.cgroups import CgroupDriver, cgroup_host, missing_cgroup_root
from kubelet_trio.config import HostFacts, KubeletConfiguration, parse_swaps
from kubelet_trio.host import PROC_SYS, LeftOut, differences, write_oom_score
from kubelet_trio.model import get_logger

log = get_logger()

_PR_SET_DUMPABLE = 4
_UMASK = 0o022


def host_facts(
    config: KubeletConfiguration, proc: Path = Path("/proc"), sysctl: Path = PROC_SYS
) -> HostFacts:
    """Read the facts that decide whether the agent may start."""
    try:
        swaps = parse_swaps((proc / "swaps").read_text())
    except OSError as exc:  # without /proc/swaps there is no swap, as in the Go kubelet
        log.warning("host.swaps_unknown", error=str(exc))
        swaps = ()
    host = cgroup_host()
    driver: CgroupDriver = "systemd" if config.cgroup_driver == "systemd" else "cgroupfs"
    missing = missing_cgroup_root(host, config.cgroup_root, driver)
    return HostFacts(
        host.version,
        swaps,
        missing_cgroup_root=tuple(map(str, missing)),
        kernel=tuple(map(str, differences(sysctl))) if config.protect_kernel_defaults else (),
    )


def apply_to_process(
    oom_score_adj: int, max_open_files: int, proc: Path = Path("/proc/self")
) -> list[LeftOut]:
    """Set the agent's own OOM score and file limit; return what is refused."""
    left_out = []
    try:
        write_oom_score(oom_score_adj, proc)
    except OSError as exc:
        told = {"wanted": oom_score_adj, "error": str(exc)}
        what = f"the agent's oom_score_adj {oom_score_adj}"
        effect = "it is killed as any other process"
        left_out.append(LeftOut("process.oom_score_adj", what, effect, told))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = hard == resource.RLIM_INFINITY or hard >= max_open_files
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max_open_files, hard if is_enough else max_open_files)
        )
    except (OSError, ValueError) as exc:
        limits = {"wanted": max_open_files, "hard": hard, "error": str(exc)}
        what, effect = f"maxOpenFiles {max_open_files}", f"the agent may open {hard}"
        left_out.append(LeftOut("process.max_open_files", what, effect, limits))
        # Without the right to raise the hard limit: use all of it.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return left_out


def harden_process() -> None:
    """Restrict the agent's own process; a refused restriction is only logged.

    Call it last: an ordinary user may not write to /proc/self afterwards (proc(5)).
    """
    import ctypes  # deferred: only the daemon needs it

    # New files are not writable for group and others, unless the agent sets their mode.
    os.umask(os.umask(0) | _UMASK)
    # No core dump with secrets, and no process of the same user reads memory or environment:
    # a container of the process runtime may run as that user. execve(2) resets it for children.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        log.warning("process.dumpable", error=os.strerror(ctypes.get_errno()))
