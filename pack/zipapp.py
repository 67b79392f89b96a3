"""Build the agent as one file: `scripts/build-zipapp`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sysconfig
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from pack import command, tree

_MAIN = Path(__file__).with_name("zipapp_main.py")


def build(out: Path, python: tree.Python, installed: Path | None = None) -> Path:
    """Write `kubelet-trio.pyz` into `out` and return its path.

    Raises:
        BuildError: pip failed.
    """
    with tempfile.TemporaryDirectory(prefix="build-zipapp-") as work:
        root = Path(work, "root")
        # `zipapp_main` knows where it is unpacked; tracebacks show this name.
        prefix = Path("kubelet-trio.pyz")
        made = tree.build(root, prefix, python, interpreter="/nowhere", installed=installed)
        for path in (root / "bin" / "python3", root / "pyvenv.cfg"):
            path.unlink()  # made when it is unpacked
        files = sorted(path for path in root.rglob("*") if path.is_file())
        about = {
            "version": tree.version(),
            "python": made.python.version,
            "platform": sysconfig.get_platform(),
            "content": _digest(root, files),
        }
        path = out / "kubelet-trio.pyz"
        out.mkdir(parents=True, exist_ok=True)
        _write(path, root, files, about)
        return path


def _digest(root: Path, files: list[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root)}\0{content}\n".encode())
    return total.hexdigest()


def _write(path: Path, root: Path, files: list[Path], about: dict[str, str]) -> None:
    moment = datetime.fromtimestamp(max(tree.epoch(), 315532800), UTC).timetuple()[:6]
    with path.open("wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:

            def add(name: str, content: bytes) -> None:
                entry = zipfile.ZipInfo(name, moment)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content)

            add("__main__.py", _MAIN.read_bytes())
            add("about.json", json.dumps(about).encode())
            for file in files:
                add(f"tree/{file.relative_to(root)}", file.read_bytes())
    path.chmod(0o755)


def main() -> int:
    """Run `scripts/build-zipapp`."""
    parser = argparse.ArgumentParser(prog="scripts/build-zipapp", description=__doc__)
    command.add_options(parser, "dist")
    options = parser.parse_args()
    return command.run(lambda python: build(options.out, python), options)
