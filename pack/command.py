"""What the build commands share: options, and how they end."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pack import tree


def add_options(parser: argparse.ArgumentParser, out: str) -> None:
    """Add --out and --python."""
    parser.add_argument(
        "--out", type=Path, default=tree.REPO / out, metavar="DIR", help=f"where to [{out}/]"
    )
    parser.add_argument(
        "--python",
        metavar="PROGRAM",
        help="a Python of the version that the package is for [the one that runs this]",
    )


def run(build: Callable[[tree.Python], Path], options: argparse.Namespace) -> int:
    """Build, say what was made, and return the exit status."""
    begun = time.monotonic()
    try:
        path = build(tree.Python.of(options.python))
    except tree.BuildError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    megabytes = path.stat().st_size / 1e6
    print(f"{path}  {megabytes:.1f} MB, in {time.monotonic() - begun:.0f} s")
    return 0
