"""The host as `run` finds it, and what the process asks of it."""

from __future__ import annotations

import resource
from pathlib import Path

import structlog

from kubelet_trio.cgroups import cgroup_version
from kubelet_trio.config import HostFacts, parse_swaps

log = structlog.get_logger()


def host_facts(proc: Path = Path("/proc")) -> HostFacts:
    """Read what decides whether the agent may start."""
    try:
        swaps = parse_swaps((proc / "swaps").read_text())
    except OSError as exc:  # as upstream: a host that does not tell has none
        log.warning("host.swaps_unknown", error=str(exc))
        swaps = ()
    return HostFacts(cgroup_version(), swaps)


def apply_to_process(
    oom_score_adj: int, max_open_files: int, proc: Path = Path("/proc/self")
) -> None:
    """Set the agent's own OOM score and file limit; what is not allowed is only logged."""
    try:
        (proc / "oom_score_adj").write_text(str(oom_score_adj))
    except OSError as exc:
        log.warning("process.oom_score_adj", wanted=oom_score_adj, error=str(exc))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = hard == resource.RLIM_INFINITY or hard >= max_open_files
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max_open_files, hard if is_enough else max_open_files)
        )
    except (OSError, ValueError) as exc:
        log.warning("process.max_open_files", wanted=max_open_files, hard=hard, error=str(exc))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
