from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kubelet_trio.volumes.noswap import in_user_namespace, tmpfs_noswap_supported


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("         0          0 4294967295\n", False),
        ("         0       1000          1\n", True),
        ("0 1000 1\n1 100000 65536\n", True),
        ("", False),
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
    ("release", "supported"),
    [
        ("6.4.0", True),
        ("6.3.9-generic", False),
        ("5.15.0-1", False),
        ("10.0-rc1", True),
        ("x", False),
    ],
)
def test_noswap_came_with_linux_6_4(release: str, supported: bool) -> None:
    assert tmpfs_noswap_supported(release) is supported
