"""Mounting NFS: the host's own helper does it, for it talks to the server first.

`mount.nfs` comes with nfs-common or nfs-utils. A node without it cannot mount NFS, and the
pod's event says which file is missing. A server that does not answer is given up on after
a while: the pod's worker waits meanwhile, and tries again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

HELPERS = (Path("/sbin/mount.nfs"), Path("/usr/sbin/mount.nfs"))

_LIMIT = 60.0  # seconds


def run_mount_nfs(
    source: str,
    target: Path,
    options: Sequence[str],
    helpers: Sequence[Path] = HELPERS,
    limit: float = _LIMIT,
) -> None:
    """Run the helper, for `limit` seconds. Raises OSError: what it said, or that it is missing."""
    helper = next((path for path in helpers if os.access(path, os.X_OK)), None)
    if helper is None:
        text = f"{helpers[0]} is missing: install nfs-common (Debian) or nfs-utils (Fedora)"
        raise OSError(text)
    import subprocess  # costs memory, and few nodes mount NFS

    command = [str(helper), source, str(target), *(["-o", ",".join(options)] if options else [])]
    done = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = done.communicate(timeout=limit)
    except subprocess.TimeoutExpired as exc:
        done.kill()
        _leave(done)
        raise OSError(f"{source} did not answer within {limit:g} s") from exc
    if done.returncode != 0:
        said = output.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise OSError(f"mounting {source} failed: {said}")


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Let a killed process end when the kernel lets it: one that waits for a server may not."""
    if process.stdout is not None:
        process.stdout.close()
    threading.Thread(target=process.wait, name="mount.nfs", daemon=True).start()
