"""Paths of a pod's files and logs. The layout is the Go kubelet's, so a node can switch agents."""

from __future__ import annotations

from pathlib import Path

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import ContainerId, pod_key, pod_uid

_MAX_FILE_NAME = 255
_LOG = ".log"


def pod_log_directory(pod_logs_dir: Path, pod: Pod) -> Path:
    """Return `<podLogsDir>/<namespace>_<name>_<uid>`: a sandbox's `log_directory`."""
    key = pod_key(pod)
    return pod_logs_dir / f"{key.namespace}_{key.name}_{pod_uid(pod)}"


def container_log_path(container: str, restart_count: int) -> str:
    """Return a container's log path below its pod's log directory."""
    return f"{container}/{restart_count}{_LOG}"


def log_link(container_logs_dir: Path, pod: Pod, container: str, container_id: ContainerId) -> Path:
    """Return the link through which log collectors find a container's log, cut to 255 bytes."""
    key = pod_key(pod)
    name = f"{key.name}_{key.namespace}_{container}-{container_id}"
    return container_logs_dir / (name[: _MAX_FILE_NAME - len(_LOG)] + _LOG)


def hosts_path(pod_dir: Path) -> Path:
    """Return the path of the pod's hosts file."""
    return pod_dir / "etc-hosts"


def container_dir(pod_dir: Path, container: str) -> Path:
    """Return the directory of a container's termination message files."""
    return pod_dir / "containers" / container


def make_directories(path: Path, mode: int = 0o750) -> None:
    """Create a directory and missing parents, all with `mode` (less the umask). Blocks.

    `Path.mkdir(parents=True)` would apply the mode to the last one only. Raises OSError.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=mode, exist_ok=True)
