"""The pages about the library are true: the reference is current, its examples work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kubelet_trio.embed.intake import read_pod

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "embedding.md").read_text()


def test_the_reference_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "gen-api-docs"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_pod_of_the_guide_is_one() -> None:
    (text,) = re.findall(r'POD = """(.*?)"""', GUIDE, re.DOTALL)
    pod, _ = read_pod(text, node_name="node", instance="i")
    assert pod.metadata is not None
    assert pod.metadata.name == "web"


def blocks(language: str) -> dict[str, str]:
    """Return the guide's fenced blocks of a language, by the file that they name first."""
    found = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    return {block.splitlines()[0].removeprefix("# "): block for block in found}


def test_the_test_of_the_guide_passes_as_it_is_written(tmp_path: Path) -> None:
    for files in (blocks("ini"), blocks("python")):
        for name, text in files.items():
            if "." in name and " " not in name:
                (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_every_program_of_the_guide_is_well_typed(tmp_path: Path) -> None:
    (program,) = [text for name, text in blocks("python").items() if name.startswith("import ")]
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "mypy", "--check-untyped-defs", "--cache-dir", str(tmp_path)]
    done = subprocess.run([*command, str(path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", GUIDE))))
def test_every_link_of_the_guide_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
