"""The directory of device plugins, `<root>/device-plugins`, cleared at each start. Blocks.

Plugins watch it: when their sockets, or that of the agent, go and come back, they register again.
Source: CleanupPluginDirectory and Start in pkg/kubelet/cm/devicemanager.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

SOCKET = "kubelet.sock"
_MODE = 0o750
# Plugins made with Kubernetes' stub do not register where this file is. The Go kubelet 1.36 does
# not make it; this agent did.
_DEPRECATION = "DEPRECATION"
_MOST_ENTRIES = 10_000
_LONGEST = 4096  # bytes of a path


def clear_directory(directory: Path) -> None:
    """Make the directory, and remove what keeps plugins from it. Raises OSError."""
    directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
    with os.scandir(directory) as entries:
        for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False):
            if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                os.unlink(entry.path)
    (directory / _DEPRECATION).unlink(missing_ok=True)


def plugin_socket(directory: Path, endpoint: str) -> str:
    """Return the path of a plugin's socket, which is below the directory.

    Raises ValueError if it would not be.
    """
    root = os.path.normpath(directory)
    path = os.path.normpath(f"{root}/{endpoint}")
    if not path.startswith(f"{root}/") or "\0" in path or len(path) > _LONGEST:
        raise ValueError(f"endpoint {endpoint[:200]!r} is not the name of a socket in {root}")
    return path
