"""The first code of kubelet-trio.pyz: unpacks it once, and becomes the agent's command.

Unpacked it has the form of a virtual environment: the agent starts Python programs with
`sys.executable`, and native modules cannot be loaded from an archive.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import stat
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    archive = Path(sys.argv[0]).resolve()
    with zipfile.ZipFile(archive) as files:
        about = json.loads(files.read("about.json"))
        _check(about)
        home = _unpack(files, about)
    python = str(home / "bin" / "python3")
    os.execv(python, [python, "-I", str(home / "bin" / "kubelet-trio"), *sys.argv[1:]])


def _check(about: dict[str, str]) -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    if here != about["python"]:
        _refuse(f"it is for Python {about['python']}, and this is {here}; run it with "
                f"python{about['python']}")  # fmt: skip
    machine = about["platform"].rpartition("-")[2]
    if sys.platform != "linux" or os.uname().machine != machine:
        _refuse(f"it is for Linux on {machine}")


def _cache() -> Path:
    if given := os.environ.get("KUBELET_TRIO_PYZ_CACHE"):
        return Path(given).absolute()
    # A service has no HOME.
    home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache"), "kubelet-trio", "pyz")


def _unpack(files: zipfile.ZipFile, about: dict[str, str]) -> Path:
    """Return the directory with the content, after making it if it is missing."""
    interpreter = Path(sys.executable).resolve()
    # Bytecode and native modules are of one version; the directory names one interpreter.
    name = hashlib.sha256(f"{about['content']}\0{interpreter}".encode()).hexdigest()[:32]
    cache = _cache()
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        _demand_own(cache)
        home = cache / name
        if not home.exists():
            _make(files, cache, home, interpreter)
        _demand_own(home)
    except OSError as exc:
        _refuse(f"cannot unpack: {exc}; set KUBELET_TRIO_PYZ_CACHE to a directory of yours")
    return home


def _demand_own(path: Path) -> None:
    """Refuse a directory into which another user may have put code."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        _refuse(f"{path} is not a directory")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        _refuse(f"{path}: others may write to it; remove it or set KUBELET_TRIO_PYZ_CACHE")


def _make(files: zipfile.ZipFile, cache: Path, home: Path, interpreter: Path) -> None:
    beside = Path(tempfile.mkdtemp(prefix=".unpack-", dir=cache))  # mode 0700
    try:
        for entry in files.infolist():
            if entry.filename.startswith("tree/"):
                target = beside / entry.filename.removeprefix("tree/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(files.read(entry))
        (beside / "bin" / "python3").symlink_to(interpreter)
        settings = f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
        (beside / "pyvenv.cfg").write_text(settings)
        try:
            beside.rename(home)
        except OSError:
            if not home.is_dir():
                raise
            # Another start was faster, with the same content.
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _refuse(why: str) -> NoReturn:
    print(f"error: kubelet-trio.pyz: {why}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
