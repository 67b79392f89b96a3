"""What `tests/harness/foreign.py` finds, and that the package has none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import kubelet_trio
from tests.harness import foreign
from tests.harness.foreign import ALLOWED, problems, uses

_FOUND = {
    "a method": ("path.read_text()", "Path.read_text"),
    "a built-in": ('open(path, "rb")', "open"),
    "a system call": ("os.chmod(path, 0o700)", "os.chmod"),
    "a file by its directory, whose flags may follow": ("os.open(n, F, dir_fd=d)", "os.open"),
    "what follows": ("os.path.exists(path)", "os.path.exists"),
    "whole trees": ("shutil.rmtree(path)", "shutil.rmtree"),
    "an entry that is followed": ("entry.is_dir()", "Path.is_dir"),
    "in a thread": ("offload(lambda: path.unlink())", "Path.unlink"),
}
_SOUND = {
    "by its directory": "os.unlink(name, dir_fd=directory)",
    "of two directories": "os.rename(a, b, src_dir_fd=d, dst_dir_fd=d)",
    "what was opened": 'open(open_regular(path), "rb")',
    "an entry itself": "entry.is_dir(follow_symlinks=False)",
    "an open file": "os.fchmod(descriptor, 0o700)",
    "no path at all": "path.with_name(name)",
}


@pytest.mark.parametrize(("call", "name"), _FOUND.values(), ids=_FOUND)
def test_what_goes_by_a_path_is_found(call: str, name: str) -> None:
    (use,) = uses(f"class C:\n    def f(self):\n        {call}\n", "room/file.py")
    assert (use.key, use.line) == (f"room/file.py::C.f {name}", 3)


@pytest.mark.parametrize("call", _SOUND.values(), ids=_SOUND)
def test_what_goes_by_a_descriptor_is_not(call: str) -> None:
    assert list(uses(f"def f():\n    {call}\n", "room/file.py")) == []


def test_an_entry_that_nothing_needs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MODULES", ("room.py", "gone.py"))
    (tmp_path / "room.py").write_text("def f():\n    path.touch()\n    path.stat()\n")
    allowed = {"room.py::f Path.touch": "own", "room.py::g Path.touch": "own"}
    found = problems(tmp_path, allowed)
    assert found[0].startswith(f"{tmp_path}/room.py:3: Path.stat goes by a path")
    assert found[1:] == [
        "ALLOWED: nothing uses 'room.py::g Path.touch'",
        "MODULES: gone.py is not there",
    ]


def test_the_package_opens_nobody_elses_file_by_its_path() -> None:
    (package,) = kubelet_trio.__path__
    assert problems(Path(package), ALLOWED) == []
