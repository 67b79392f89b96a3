"""A small Debian with Python, as a tar archive: the base of the image, and of tests in a chroot."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from pack import tree

# Which release has which Python.
SUITES = {"3.11": "bookworm", "3.13": "trixie"}
# What the agent and the shell of a process pod need beyond Debian's essential packages.
PACKAGES = ("ca-certificates",)
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*", "/usr/share/info/*")


def why_not(python: tree.Python) -> str:
    """Return why no root file system can be made here; empty if it can."""
    if python.version not in SUITES:
        return f"no Debian has Python {python.version}"
    if os.geteuid() != 0:
        return "needs root"
    if not (shutil.which("mmdebstrap") or shutil.which("debootstrap")):
        return "needs mmdebstrap or debootstrap"
    return ""


def cached(python: tree.Python, *, with_apt: bool = False) -> Path:
    """Return the archive, made at the first call: minutes, and then kept in the user's cache.

    `with_apt` is for one into which packages are installed.

    Raises:
        BuildError: It cannot be made here.
    """
    if reason := why_not(python):
        raise tree.BuildError(f"cannot make a root file system: {reason}; give --rootfs")
    suite = SUITES[python.version]
    recipe = hashlib.sha256(repr((PACKAGES, _LEFT_OUT)).encode()).hexdigest()[:8]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / "kubelet-trio" / "rootfs"
    cache.mkdir(parents=True, exist_ok=True)
    made = cache / f"{suite}{'-minbase' if with_apt else ''}-{recipe}.tar"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory(prefix=".build-", dir=cache) as work:
                archive = Path(work, "rootfs.tar")
                _make(suite, archive, Path(work), "minbase" if with_apt else "essential")
                archive.rename(made)
    return made


def _make(suite: str, archive: Path, work: Path, variant: str) -> None:
    packages = ",".join(("python3", *PACKAGES))
    if shutil.which("mmdebstrap"):
        command = ["mmdebstrap", f"--variant={variant}", f"--include={packages}", "--quiet"]
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
        _run([*command, "--dpkgopt=force-unsafe-io", suite, str(archive)])
        return
    root = work / "root"
    _run(["debootstrap", "--variant=minbase", f"--include={packages}", suite, str(root)])
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
    from_directory(root, archive)


def from_directory(root: Path, archive: Path) -> None:
    """Write a directory, with its owners, as an archive."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as out:
        for path in sorted(root.rglob("*")):
            out.add(path, str(path.relative_to(root)), recursive=False)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise tree.BuildError(f"{command[0]}: {done.stdout[-2000:]}")
