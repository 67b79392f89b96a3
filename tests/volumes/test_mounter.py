"""The directory that the agent binds to itself, and what is not to be mistaken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.volumes import KernelMounter, MountPoint
from kubelet_trio.volumes.mounter import is_bound_to_itself
from kubelet_trio.volumes.pods_dir import PodsDirectory
from tests.harness.leftovers import mounts_under


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        pytest.param([("/", "/"), ("/var/lib/k", "/var/lib/k")], True, id="bound to itself"),
        pytest.param([("/", "/")], False, id="no mount"),
        pytest.param([("/", "/"), ("/var/lib/k", "/")], False, id="a file system of its own"),
        pytest.param([("/", "/"), ("/var/lib/k", "/elsewhere")], False, id="another directory"),
        pytest.param(
            [("/", "/"), ("/var", "/disk"), ("/var/lib/k", "/disk/lib/k")],
            True,
            id="on a bind mount",
        ),
        pytest.param(
            [("/", "/"), ("/var/lib/k", "/var/lib/k"), ("/var/lib/k/pods/u/v", "/")],
            False,
            id="something is mounted below",
        ),
        pytest.param(
            [("/", "/"), ("/var/lib/k", "/var/lib/k"), ("/var/lib/k", "/var/lib/k")],
            False,
            id="mounted twice",
        ),
    ],
)
def test_only_a_directory_bound_to_itself_is_taken_back(
    mounts: list[tuple[str, str]], expected: bool
) -> None:
    table = [MountPoint(path, "ext4", "/dev/vda", root=root) for path, root in mounts]
    assert is_bound_to_itself(Path("/var/lib/k"), table) is expected


def test_of_mounts_on_top_of_each_other_the_latest_counts() -> None:
    """A private mount that covers a shared one: what lies below it is of the private one."""
    below = MountPoint("/var", "ext4", "/dev/a", shared=True)
    on_top = MountPoint("/var", "ext4", "/dev/b")
    itself = MountPoint("/var/lib/k", "ext4", "/dev/b", root="/lib/k")
    assert is_bound_to_itself(Path("/var/lib/k"), [below, on_top, itself])
    assert not is_bound_to_itself(Path("/var/lib/k"), [on_top, below, itself])


def test_what_is_still_read_below_it_keeps_no_mount(tmp_path: Path, kernel: KernelMounter) -> None:
    root = tmp_path / "root"
    directory = PodsDirectory(root / "pods", kernel)
    directory.make()
    (root / "log").write_text("line\n")
    with (root / "log").open() as log:
        directory.release()
        assert mounts_under(root) == []
        assert log.read() == "line\n"


def test_a_mount_below_it_keeps_it(tmp_path: Path, kernel: KernelMounter) -> None:
    root = tmp_path / "root"
    directory = PodsDirectory(root / "pods", kernel)
    directory.make()
    kernel.mount_tmpfs(root / "pods")
    directory.release()
    assert mounts_under(root) == [str(root / "pods"), str(root)]
    kernel.unmount(root / "pods")
    directory.release()
    assert mounts_under(root) == []
