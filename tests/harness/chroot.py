"""A fresh Debian in a chroot with processes, mounts and a network of its own: all end with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.harness.machine import PATIENCE

USER = 1000
_HOLD = """
set -e
# Runtimes of containers want the root to be a mount.
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount --rbind /sys "$1/sys"
ip link set lo up
eval "$2"
# A shell as process 1, because it reaps what has lost its parent.
exec chroot "$1" sh -c 'while sleep 3600; do :; done'
"""
# All files of programs and settings; what their use leaves (logs, homes, dpkg's notes) is not.
_VOLATILE = ("proc", "dev", "sys", "tmp", "run", "home", "var/log", "var/lib/dpkg", "var/cache")


class Chroot:
    """One unpacked Debian, entered with `run` and `start`."""

    def __init__(self, root: Path, holder: subprocess.Popen[bytes]) -> None:
        self.root, self._holder = root, holder
        self._inside = _inner(holder, root)

    def _enter(
        self, arguments: tuple[str, ...], *, user: int, spaces: Sequence[str] = ("--net",)
    ) -> list[str]:
        # Not with --setgid alone: nsenter drops the supplementary groups too.
        target = str(self._inside)
        enter = ["nsenter", "--target", target, "--mount", "--pid", "--uts", "--root", *spaces]
        who = [f"--setuid={user}", f"--setgid={user}"] if user else []
        home = f"/home/{user}" if user else "/root"
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        # Not nsenter's --wd, which it opens before it enters: a directory outside, without a name.
        clean = ["env", "-i", "--chdir=/", path, f"HOME={home}", "LC_ALL=C"]
        return [*enter, *who, *clean, *arguments]

    def run(self, *arguments: str, user: int = 0) -> str:
        """Run a program in it to its end and return what it printed."""
        command = self._enter(arguments, user=user)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120 * PATIENCE)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def command(self, *arguments: str, online: bool = False) -> list[str]:
        """Return what runs a program in it as root; `online` in the network of this machine."""
        return self._enter(arguments, user=0, spaces=() if online else ("--net",))

    def start(self, output: Path, *arguments: str, user: int = 0) -> subprocess.Popen[bytes]:
        """Start a program in it that goes on."""
        with output.open("ab") as out:
            command = self._enter(arguments, user=user)
            return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def files(self) -> set[str]:
        """Return all paths that packages and their scripts make."""
        found = set()
        for directory, inner, names in os.walk(self.root):
            here = os.path.relpath(directory, self.root)
            inner[:] = [
                name for name in inner if os.path.normpath(f"{here}/{name}") not in _VOLATILE
            ]
            found |= {os.path.normpath(f"{here}/{name}") for name in [*inner, *names]}
        return found

    def close(self) -> None:
        """End every process in it; its mounts go with the last one."""
        self._holder.send_signal(signal.SIGKILL)
        self._holder.wait()


@contextmanager
def chroot(archive: Path, base: Path, setup: str = "") -> Iterator[Chroot]:
    """Unpack a root file system below `base`, and end and remove it afterwards.

    `setup` are commands of a shell that see both file systems: `$1` is the new one.
    """
    root = base / "root"
    root.mkdir(mode=0o755)
    subprocess.run(["tar", "-xf", archive, "-C", root, "--exclude=./dev/*"], check=True)
    home = root / f"home/{USER}"
    home.mkdir(parents=True, exist_ok=True)
    os.chown(home, USER, USER)
    with (root / "etc/passwd").open("a") as accounts:
        accounts.write(f"visitor:x:{USER}:{USER}::/home/{USER}:/bin/sh\n")
    spaces = ["--mount", "--pid", "--net", "--uts", "--fork", "--kill-child"]
    spaces.append("--propagation=private")
    holder = subprocess.Popen(["unshare", *spaces, "sh", "-c", _HOLD, "hold", str(root), setup])
    inside = None
    try:
        inside = Chroot(root, holder)
        yield inside
    finally:
        inside.close() if inside else holder.kill()
        shutil.rmtree(root)


def _inner(holder: subprocess.Popen[bytes], root: Path) -> int:
    """Return the PID, outside, of the first process in it, when all is mounted."""
    deadline = time.monotonic() + 20 * PATIENCE
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    while time.monotonic() < deadline and holder.poll() is None:
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/root").readlink() == root.resolve():
                return int(pid)
        time.sleep(0.02)
    raise AssertionError("the chroot did not come up")
