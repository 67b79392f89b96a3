"""Fuzz one target with atheris, which is installed by hand: see tests/README.md.

python -m tests.fuzz.by_hand TARGET [arguments of libFuzzer]
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["kubelet_trio"]):
        from tests.fuzz.table import TARGETS
        from tests.fuzz.target import Target, examine
        from tests.fuzz.test_fuzz import directory_of, keep

    targets: dict[str, Target] = {target.name: target for target in TARGETS}
    name = sys.argv[1] if len(sys.argv) > 1 else "--list"
    if name not in targets:
        print("\n".join(targets))
        sys.exit(0 if name == "--list" else 2)
    target = targets[name]

    def look(data: bytes) -> None:
        try:
            examine(target, data)
        except BaseException:
            print(f"kept as {keep(target, data)}", file=sys.stderr)
            raise

    with tempfile.TemporaryDirectory() as begun:
        for number, example in enumerate(target.examples):
            Path(begun, str(number)).write_bytes(example)
        known = [str(directory_of(target))] if directory_of(target).is_dir() else []
        # What libFuzzer itself adds goes to the first directory, which is not kept.
        atheris.Setup([sys.argv[0], *sys.argv[2:], begun, *known], look)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
