from __future__ import annotations

import os
import stat
from pathlib import Path

from kubelet_trio.containers import make_directories


def test_parents_have_the_mode_too(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        make_directories(tmp_path / "a" / "b", 0o750)
        make_directories(tmp_path / "a" / "b", 0o700)
    finally:
        os.umask(umask)
    for made in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o750
