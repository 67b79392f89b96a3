"""The kernel's settings, on a tree of plain files in the place of /proc/sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.host import differences, set_tunables
from kubelet_trio.host import tunables as module
from kubelet_trio.host.tunables import TUNABLES


def tree(root: Path, **changed: str) -> Path:
    """Write a tree as the kubelet wants it, but for `changed` (by the last part of the name)."""
    for name, wanted in TUNABLES:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(changed.get(file.name, str(wanted)) + "\n")
    return root


def values(root: Path) -> dict[str, int]:
    return {name: int((root / name).read_text()) for name, _ in TUNABLES}


def test_what_differs_is_written(tmp_path: Path) -> None:
    root = tree(tmp_path, overcommit_memory="0", panic="0", root_maxkeys="200")
    assert set_tunables(root) == []
    assert values(root) == dict(TUNABLES)


def test_what_is_right_already_is_not_written(tmp_path: Path) -> None:
    root = tree(tmp_path)
    before = {name: (root / name).stat().st_mtime_ns for name, _ in TUNABLES}
    set_tunables(root)
    assert {name: (root / name).stat().st_mtime_ns for name, _ in TUNABLES} == before


def test_what_cannot_be_written_is_returned_as_one_with_all_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, overcommit_memory="0", panic="0")
    (root / "kernel/keys/root_maxkeys").unlink()

    def refuse(path: Path, value: int) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(module, "_write", refuse)
    [left_out] = set_tunables(root)
    assert left_out.event == "kernel.settings_refused"
    names = "vm/overcommit_memory, kernel/panic, kernel/keys/root_maxkeys"
    assert str(left_out) == f"the kernel settings {names} (they stay as they are)"
    assert left_out.fields["effect"] == "they stay as they are"
    told = str(left_out.fields["settings"])
    assert "vm/overcommit_memory stays 0, wanted 1" in told
    assert "kernel/panic stays 0, wanted 10" in told
    assert "kernel/keys/root_maxkeys cannot be read" in told
    assert "panic_on_oops" not in told


def test_a_setting_that_the_kernel_lacks_is_not_made(tmp_path: Path) -> None:
    set_tunables(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_each_difference_names_setting_value_and_what_was_expected(tmp_path: Path) -> None:
    root = tree(tmp_path, panic="-1", panic_on_oom="many")
    first, second = differences(root)
    assert str(first).startswith("vm/panic_on_oom cannot be read: ")
    assert str(second) == "kernel/panic is -1, expected 10"
    assert differences(tree(tmp_path)) == []
