"""Mounting NFS: the host's own helper does it, for it talks to the server first.

`mount.nfs` comes with nfs-common or nfs-utils. A node without it cannot mount NFS, and the
pod's event says which file is missing. A server that does not answer is given up on after
a while: the pod's worker waits meanwhile, and tries again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

HELPERS = (Path("/sbin/mount.nfs"), Path("/usr/sbin/mount.nfs"))

_LIMIT = 60.0  # seconds


def run_mount_nfs(
    source: str, target: Path, options: Sequence[str], helpers: Sequence[Path] = HELPERS
) -> None:
    """Run the helper. Raises OSError with what it said, or that it is missing."""
    helper = next((path for path in helpers if os.access(path, os.X_OK)), None)
    if helper is None:
        text = f"{helpers[0]} is missing: install nfs-common (Debian) or nfs-utils (Fedora)"
        raise OSError(text)
    import subprocess  # costs memory, and few nodes mount NFS

    command = [str(helper), source, str(target), *(["-o", ",".join(options)] if options else [])]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise OSError(f"{source} did not answer within {_LIMIT:g} s") from exc
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise OSError(f"mounting {source} failed: {said}")
