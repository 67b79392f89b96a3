"""Making directories with the mode they shall have, parents included."""

from __future__ import annotations

from pathlib import Path


def make_directories(path: Path, mode: int = 0o750) -> None:
    """Make a directory and the parents that are missing, all with `mode` (less the umask).

    `Path.mkdir(parents=True)` gives its mode to the last one only. Blocks.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=mode, exist_ok=True)
