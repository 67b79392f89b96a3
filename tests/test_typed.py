"""A program that uses the installed library is checked by its types."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
MISTAKES = """
from kubelet_trio import KubeletConfig, RunningPod, open_kubelet

async def use(running: RunningPod) -> None:
    await running.exec("ls -l")
    await running.exec(["ls"], timeout="5")
    KubeletConfig(root="x")
    async with open_kubelet("/path") as kubelet:
        kubelet.nothing
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the interpreter of a new environment that has the wheel, and what it needs."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    # Behind the wheel: the libraries that it needs.
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


@pytest.fixture
def programs(tmp_path: Path) -> list[Path]:
    """The examples, and last a program of mistakes."""
    examples = sorted((ROOT / "examples" / "embedding").glob("*.py"))
    assert examples
    wrong = tmp_path / "wrong.py"
    wrong.write_text(MISTAKES)
    return [*examples, wrong]


def mypy(python: Path, programs: list[Path]) -> Iterator[tuple[str, int]]:
    """Yield file and line of each error."""
    flags = ["--strict", "--config-file=", "--no-error-summary"]
    place = [f"--python-executable={python}", f"--cache-dir={python.parent / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *flags, *place, *map(str, programs)],
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""
    for line in done.stdout.splitlines():
        if ": error: " in line:
            name, number, *_ = line.split(":")
            yield Path(name).name, int(number)


def pyright(python: Path, programs: list[Path]) -> Iterator[tuple[str, int]]:
    """Yield likewise. The rules are pyright's own, not those that basedpyright adds."""
    settings = python.parent / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "typeCheckingMode": "strict",
                "include": [str(path) for path in programs],
                "extraPaths": [str(programs[0].parent)],  # one example imports another
            }
        )
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson"),
            *(f"--project={settings}", f"--pythonpath={python}"),
        ],
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            yield Path(found["file"]).name, found["range"]["start"]["line"] + 1


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_examples_pass_and_mistakes_are_found(
    python: Path,
    programs: list[Path],
    checker: Callable[[Path, list[Path]], Iterator[tuple[str, int]]],
) -> None:
    found = set(checker(python, programs))
    assert found == {("wrong.py", line) for line in (5, 6, 7, 8, 9)}
