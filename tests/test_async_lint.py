"""What `tests/harness/async_lint.py` hands to the linter and what it remembers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.async_lint import lint, python_files

_BAD = """\
import trio


async def close():
    try:
        await trio.sleep(1)
    finally:
        await trio.sleep(1)
"""
_GOOD = _BAD.replace("    finally:\n        await trio.sleep(1)", "    finally:\n        pass")


def _no_run(paths: Sequence[Path]) -> str:
    return f"asked for {paths}" if paths else ""


def test_a_file_is_linted_until_it_is_clean_and_again_when_it_changes(tmp_path: Path) -> None:
    cache, good, changing = tmp_path / "cache", tmp_path / "good.py", tmp_path / "changing.py"
    good.write_text(_GOOD)
    changing.write_text(_BAD)
    files = [good, changing]

    assert "ASYNC102" in lint(files, cache)
    assert "ASYNC102" in lint(files, cache)
    changing.write_text(_GOOD)
    assert lint(files, cache) == ""
    assert lint(files, cache, _no_run) == ""
    changing.write_text(_BAD)
    assert "changing.py" in lint(files, cache, _no_run)


def test_linting_one_file_forgets_no_other(tmp_path: Path) -> None:
    cache, first, second = tmp_path / "cache", tmp_path / "first.py", tmp_path / "second.py"
    for path in (first, second):
        path.write_text(_GOOD)
        assert lint([path], cache) == ""
    assert lint([first, second], cache, _no_run) == ""


def test_generated_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "a.py").write_text(_GOOD)
    (tmp_path / "b.py").write_text(_GOOD)
    assert python_files([str(tmp_path)]) == [tmp_path / "b.py"]


@pytest.mark.parametrize(
    ("text", "is_linted"),
    [
        ("import kubelet_trio\n", False),
        ("import trio\n", True),
        ("    from trio.testing import MockClock\n", True),
        ("async def run(): ...\n", True),
    ],
)
def test_files_without_asynchronous_code_are_left_out(
    tmp_path: Path, text: str, is_linted: bool
) -> None:
    (tmp_path / "a.py").write_text(text)
    assert python_files([str(tmp_path)]) == ([tmp_path / "a.py"] if is_linted else [])
