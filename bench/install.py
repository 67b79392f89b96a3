"""The agent as a user installs it.

Some of its libraries look for other packages when they are imported (structlog for rich), and
what helps to develop it brings those: a development environment takes 4 MB more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[1]


def install(directory: Path) -> Path:
    """Install this checkout without extras into a new virtual environment; return its command."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    programs = directory / "bin"
    subprocess.run(
        [str(programs / "pip"), "install", "-qq", "--compile", str(REPO)],
        check=True,
    )
    return programs / "kubelet-trio"
