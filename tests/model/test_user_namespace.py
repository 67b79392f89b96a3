"""The map of users, which says whether this is the machine's own user namespace."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kubelet_trio.model import in_user_namespace, mapped_ids


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("         0          0 4294967295\n", False),
        ("         0       1000          1\n", True),
        ("0 1000 1\n1 100000 65536\n", True),
        ("", True),  # a new namespace, before its map is written
    ],
)
def test_only_the_first_namespace_maps_all_ids(tmp_path: Path, text: str, inside: bool) -> None:
    (tmp_path / "uid_map").write_text(text)
    assert in_user_namespace(tmp_path / "uid_map") is inside


def test_a_kernel_without_namespaces_has_no_map(tmp_path: Path) -> None:
    assert not in_user_namespace(tmp_path / "uid_map")


def test_the_kernels_own_map_of_a_new_namespace(tmp_path: Path) -> None:
    made = subprocess.run(
        ["unshare", "--user", "--map-root-user", "cat", "/proc/self/uid_map"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no user namespaces here: {made.stderr.strip()}")
    (tmp_path / "uid_map").write_text(made.stdout)
    assert in_user_namespace(tmp_path / "uid_map")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("         0          0 4294967295\n", 4294967295),
        ("0 1000 1\n1 100000 65536\n", 65537),
        ("", 0),
        ("0 1000\nwhat 1 x\n", 0),
    ],
)
def test_the_users_of_a_namespace_are_those_of_all_lines(
    tmp_path: Path, text: str, count: int
) -> None:
    (tmp_path / "uid_map").write_text(text)
    assert mapped_ids(tmp_path / "uid_map") == count
    assert mapped_ids(tmp_path / "none") == 0
