"""Runs flake8-async on the files that have changed since it last found them clean.

It takes a second for every few hundred lines, so what it need not read again it is not given:
`.cache/flake8-async` holds a digest of every clean file with the linter's version and options.
`python tests/harness/async_lint.py PATH...` lints the Python files below the paths; it exits 1 and
prints what flake8-async printed if anything was found.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

CACHE = Path(".cache/flake8-async")
# Left out: 9xx (optional, a checkpoint in every function), 110 (ruff's is the finer one), 114
# (wants every startable listed), 124 (a seam may be async for another implementation's sake), 128
# (knows no delegated readiness), 401 (tests look into a group where its shape is the point).
OPTIONS = (
    "--enable=ASYNC",
    "--disable=ASYNC9,ASYNC110,ASYNC114,ASYNC124,ASYNC128,ASYNC401",
)
_ASYNCHRONOUS = re.compile(
    rb"\basync\b|\bawait\b|^\s*(import|from) (trio|anyio|asyncio)\b", re.MULTILINE
)
_BATCH = 20  # files a process: its start takes a second


def python_files(paths: Iterable[str]) -> list[Path]:
    """Return the Python files to lint below `paths`, or the paths themselves.

    Nothing generated, and nothing without asynchronous code: every rule is about such code.
    """
    found: set[Path] = set()
    for path in map(Path, paths):
        found.update([path] if path.is_file() else path.rglob("*.py"))
    return sorted(
        path
        for path in found
        if "generated" not in path.parts and _ASYNCHRONOUS.search(path.read_bytes())
    )


def stamp(path: Path) -> str:
    """Return what the verdict on a file depends on: its content, the linter and its options."""
    settings = " ".join((version("flake8-async"), *OPTIONS))
    return hashlib.sha256(settings.encode() + b"\0" + path.read_bytes()).hexdigest()


def lint(
    paths: Sequence[Path], cache: Path = CACHE, run: Callable[[Sequence[Path]], str] | None = None
) -> str:
    """Run the linter on the files that `cache` does not know as clean, and return what it found.

    `run` takes files and returns the findings, "" for none.
    """
    known = _read(cache)
    stamps = {path: stamp(path) for path in paths}
    changed = [path for path in paths if known.get(path) != stamps[path]]
    found = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        groups = [changed[begin : begin + _BATCH] for begin in range(0, len(changed), _BATCH)]
        for group, output in zip(groups, pool.map(run or _flake8_async, groups), strict=True):
            if output:
                found.append(output)
            else:
                known.update((path, stamps[path]) for path in group)
    cache.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{digest} {path}\n" for path, digest in known.items() if path.exists())
    cache.write_text("".join(lines))
    return "".join(found)


def _read(cache: Path) -> dict[Path, str]:
    """Return the stamp of each file at the time it was clean."""
    lines = cache.read_text().splitlines() if cache.exists() else ()
    return {Path(path): digest for digest, _, path in (line.partition(" ") for line in lines)}


def _flake8_async(paths: Sequence[Path]) -> str:
    program = Path(sys.executable).with_name("flake8-async")
    done = subprocess.run(
        [program, *OPTIONS, *paths], check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode and not done.stdout:
        raise RuntimeError(f"flake8-async failed with exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    findings = lint(python_files(sys.argv[1:]))
    print(findings, end="")
    sys.exit(bool(findings))
