"""A program that uses the installed library is checked by its types."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
MISTAKES = """
import trio
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


def mypy(python: Path, *paths: Path) -> list[str]:
    flags = ["--strict", "--config-file=", "--no-error-summary"]
    place = [f"--python-executable={python}", f"--cache-dir={python.parent / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *flags, *place, *map(str, paths)],
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_examples_pass_and_mistakes_are_found(python: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(MISTAKES)
    examples = sorted((ROOT / "examples" / "embedding").glob("*.py"))
    assert examples
    found = mypy(python, *examples, wrong)
    errors = [line for line in found if ": error: " in line]
    assert [line for line in errors if "wrong.py" not in line] == []
    assert sorted({int(line.split(":")[1]) for line in errors}) == [6, 7, 8, 9, 10]
