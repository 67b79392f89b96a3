from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubelet_trio.volumes.atomic import File, check_path, write_payload

NOON = 1_769_860_800.0  # 2026-01-31 12:00:00 UTC


def payload(**files: str) -> dict[str, File]:
    return {name.replace("__", "/"): File(text.encode(), 0o644) for name, text in files.items()}


def visible(directory: Path) -> dict[str, str]:
    """What a container finds: files by path, hidden names left out."""
    found = {}
    for parent, _, names in os.walk(directory, followlinks=True):
        for name in names:
            path = Path(parent) / name
            if not path.relative_to(directory).parts[0].startswith(".."):
                found[str(path.relative_to(directory))] = path.read_text()
    return found


def data(directory: Path) -> str:
    return os.readlink(directory / "..data")


def test_the_layout_is_the_go_kubelets(tmp_path: Path) -> None:
    assert write_payload(tmp_path, payload(a="1", d__e__f="2"), NOON)
    assert data(tmp_path).startswith("..2026_01_31_12_00_00.")
    assert os.readlink(tmp_path / "a") == "..data/a"
    assert os.readlink(tmp_path / "d") == "..data/d"
    assert sorted(os.listdir(tmp_path)) == sorted([data(tmp_path), "..data", "a", "d"])
    assert visible(tmp_path) == {"a": "1", "d/e/f": "2"}
    assert stat.S_IMODE((tmp_path / data(tmp_path)).stat().st_mode) == 0o755


def test_what_did_not_change_is_not_written(tmp_path: Path) -> None:
    write_payload(tmp_path, payload(a="1"), NOON)
    before = data(tmp_path)
    assert not write_payload(tmp_path, payload(a="1"), NOON + 60)
    assert data(tmp_path) == before


def test_a_change_shows_all_at_once_and_the_old_version_goes(tmp_path: Path) -> None:
    write_payload(tmp_path, payload(a="1", b="1", d__e="1"), NOON)
    before = data(tmp_path)
    seen: list[dict[str, str]] = []
    write_payload(
        tmp_path, payload(a="2", c="2"), NOON + 60, lambda _: seen.append(visible(tmp_path))
    )
    assert seen == [{"a": "1", "b": "1", "d/e": "1"}]  # complete on disk, and not visible yet
    assert visible(tmp_path) == {"a": "2", "c": "2"}
    assert not (tmp_path / before).exists()
    assert sorted(os.listdir(tmp_path)) == sorted([data(tmp_path), "..data", "a", "c"])


def test_modes_hold_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        write_payload(tmp_path, {"a": File(b"", 0o777), "b": File(b"", 0o400)}, NOON)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o400


def test_a_write_that_was_cut_short_is_made_good(tmp_path: Path) -> None:
    write_payload(tmp_path, payload(a="1"), NOON)
    (tmp_path / "..2026_01_31_12_00_30.7").mkdir()
    (tmp_path / "..2026_01_31_12_00_30.7" / "half").touch()
    (tmp_path / "..data_tmp").symlink_to("..2026_01_31_12_00_30.7")
    (tmp_path / "a").unlink()  # its link was not made yet
    assert not write_payload(tmp_path, payload(a="1"), NOON + 60)
    assert visible(tmp_path) == {"a": "1"}
    write_payload(tmp_path, payload(a="2"), NOON + 60)
    assert sorted(os.listdir(tmp_path)) == sorted([data(tmp_path), "..data", "a"])


def test_a_failed_write_leaves_the_old_version(tmp_path: Path) -> None:
    write_payload(tmp_path, payload(a="1"), NOON)
    before = sorted(os.listdir(tmp_path))

    def fail(_descriptor: int) -> None:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        write_payload(tmp_path, payload(a="2"), NOON, fail)
    assert sorted(os.listdir(tmp_path)) == before
    assert visible(tmp_path) == {"a": "1"}


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "must not be empty"),
        ("/a", "must be relative"),
        ("a/../b", "must not contain '..'"),
        ("..", "must not contain '..'"),
        ("..data", "must not start with '..'"),
        ("a" * 256, "filenames"),
        ("a/" * 2048 + "b", "4096"),
    ],
)
def test_paths_stay_inside(tmp_path: Path, path: str, problem: str) -> None:
    assert problem in (check_path(path) or "")
    with pytest.raises(ValueError, match="invalid path"):
        write_payload(tmp_path, {path: File(b"", 0o644)}, NOON)
    assert os.listdir(tmp_path) == []


NAMES = st.sampled_from(["a", "b", "c", "d/x", "d/y", "e/f/g"])
PAYLOADS = st.dictionaries(NAMES, st.sampled_from(["1", "2"]), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(PAYLOADS, min_size=1, max_size=6))
def test_what_is_visible_is_always_the_last_payload(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[dict[str, str]]
) -> None:
    directory = tmp_path_factory.mktemp("volume")
    for each in payloads:
        write_payload(directory, {k: File(v.encode(), 0o644) for k, v in each.items()}, NOON)
        assert visible(directory) == each
