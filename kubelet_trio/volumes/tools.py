"""Run programs of the host: mount helpers, file system tools, initiators, FlexVolume drivers.

Every program has a deadline, a bounded output and a clean environment. One that overstays is killed
with its process group; one that is missing is named with the packages to install. All of it blocks:
callers use `Purpose.DEVICES`, whose threads nothing else waits for.

A call returns when its program has ended. In a system call that hangs (state D, a dead disk) even a
killed one does not end; the call then keeps its thread, and the lock of its volume, so that no
second program works on the same disk (volumes/keyed.py).
"""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kubelet_trio.volumes.errors import MissingToolError

if TYPE_CHECKING:
    import subprocess

LIMIT = 120.0  # seconds for one program
# mkfs and fsck of a large disk take long. The Go kubelet sets no limit: a killed mkfs can leave
# half a file system, so this one is only for a device that hangs.
FORMAT_LIMIT = 3600.0
MAX_OUTPUT = 64 << 10  # bytes kept; the rest is read and dropped
MAX_EXCERPT = 1024  # characters of the output in an error, which becomes an event

_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# C: callers parse what the programs print.
_ENVIRONMENT = {"PATH": ":".join(_PATH), "LC_ALL": "C", "HOME": "/root"}

# The packages of each program: Debian's, Fedora's.
_PACKAGES = {
    "blkid": ("util-linux", "util-linux"),
    "blockdev": ("util-linux", "util-linux"),
    "btrfs": ("btrfs-progs", "btrfs-progs"),
    "fsck": ("util-linux", "util-linux"),
    "iscsiadm": ("open-iscsi", "iscsi-initiator-utils"),
    "mkfs.btrfs": ("btrfs-progs", "btrfs-progs"),
    "mkfs.ext2": ("e2fsprogs", "e2fsprogs"),
    "mkfs.ext3": ("e2fsprogs", "e2fsprogs"),
    "mkfs.ext4": ("e2fsprogs", "e2fsprogs"),
    "mkfs.xfs": ("xfsprogs", "xfsprogs"),
    "mount": ("mount", "util-linux"),
    "mount.nfs": ("nfs-common", "nfs-utils"),
    "multipath": ("multipath-tools", "device-mapper-multipath"),
    "multipathd": ("multipath-tools", "device-mapper-multipath"),
    "resize2fs": ("e2fsprogs", "e2fsprogs"),
    "xfs_growfs": ("xfsprogs", "xfsprogs"),
}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a program ended."""

    code: int  # its exit status; negative: the signal that killed it
    output: str  # standard output and standard error, at most `MAX_OUTPUT` bytes

    @property
    def excerpt(self) -> str:
        """The beginning of the output, for an error."""
        return self.output if len(self.output) <= MAX_EXCERPT else f"{self.output[:MAX_EXCERPT]}..."

    @property
    def failure(self) -> str:
        """What the program says about its failure."""
        return self.excerpt.strip() or self.ending

    @property
    def ending(self) -> str:
        """How it ended, in Go's words (`exec.ExitError`)."""
        if self.code < 0:
            return f"signal: {signal.strsignal(-self.code) or -self.code}"
        return f"exit status {self.code}"


class Tools(Protocol):
    """The host's programs."""

    def run(self, tool: str, *arguments: str, limit: float = LIMIT) -> ToolResult:
        """Run a program to its end. Blocks.

        Raises `MissingToolError`, or OSError if it cannot be started or is not finished after
        `limit` seconds (ETIMEDOUT, once it is killed). An exit status other than 0 is no error.
        """
        ...


@dataclass(frozen=True, slots=True)
class HostTools:
    """The `Tools` of this machine, found by name in the directories of the system."""

    path: Sequence[str] = _PATH

    def run(self, tool: str, *arguments: str, limit: float = LIMIT) -> ToolResult:
        return run_tool([Path(place) / tool for place in self.path], arguments, limit)


def run_tool(
    places: Sequence[Path],
    arguments: Sequence[str],
    limit: float = LIMIT,
    *,
    waits: bool = True,
) -> ToolResult:
    """Run the first of the places that can be executed. Blocks.

    A program that leaves a child in the background is finished when it has ended itself, even if
    the child keeps its output open. `waits` False: return soon after `limit`, even if the killed
    program does not end.

    Raises `MissingToolError`, or OSError as `Tools.run`.
    """
    program = next((place for place in places if os.access(place, os.X_OK)), None)
    if program is None or program.is_dir():
        raise missing_tool(places)
    import subprocess  # deferred: it costs memory, and few nodes run programs

    # A session of its own, so that its children can be killed with it.
    process = subprocess.Popen(
        [str(program), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
    try:
        output = _read_until_end(process, limit)
    except OSError as exc:
        os.killpg(process.pid, signal.SIGKILL)
        _reap(process, program.name, waits=waits)
        if not isinstance(exc, TimeoutError):
            raise
        raise OSError(errno.ETIMEDOUT, f"{program} did not finish within {limit:g} s") from exc
    assert process.stdout is not None
    process.stdout.close()
    return ToolResult(process.wait(), output.decode("utf-8", "replace"))


def missing_tool(places: Sequence[Path]) -> MissingToolError:
    """Return the error for a program that is in none of the places."""
    name = places[0].name
    packages = _PACKAGES.get(name)
    if packages is None:
        return MissingToolError(f"{places[0]} is missing or cannot be executed")
    debian, fedora = packages
    # Where the distributions install it, not /usr/local.
    place = next((p for p in places if not str(p).startswith("/usr/local/")), places[0])
    return MissingToolError(f"{place} is missing: install {debian} (Debian) or {fedora} (Fedora)")


def _read_until_end(process: subprocess.Popen[bytes], limit: float) -> bytes:
    """Return the first `MAX_OUTPUT` bytes of the output once the process has ended.

    Raises TimeoutError.
    """
    assert process.stdout is not None
    pipe, ends, kept = process.stdout.fileno(), time.monotonic() + limit, bytearray()
    ended = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(pipe, select.POLLIN)
        poller.register(ended, select.POLLIN)
        while True:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = [descriptor for descriptor, _ in poller.poll(left * 1000)]
            # The pipe first: a process that has ended may have left output in it.
            if pipe in ready:
                part = os.read(pipe, 1 << 16)
                kept += part[: MAX_OUTPUT - len(kept)]
                if not part:
                    poller.unregister(pipe)
            elif ended in ready:
                return bytes(kept)
    finally:
        os.close(ended)


def _reap(process: subprocess.Popen[bytes], name: str, *, waits: bool) -> None:
    """Reap a killed process; without `waits` in a daemon thread, as it may not die yet."""
    if process.stdout is not None:
        process.stdout.close()
    if waits:
        process.wait()
    else:
        threading.Thread(target=process.wait, name=name, daemon=True).start()
