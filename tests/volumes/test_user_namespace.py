"""What the kernel refuses of volumes in a user namespace, in a real one, says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kubelet_trio.volumes import mounter
from kubelet_trio.volumes.mounter import run_mount
from kubelet_trio.volumes.tools import HostTools, ToolResult

_INSIDE = """
import sys
from pathlib import Path
from kubelet_trio.volumes.mounter import KernelMounter
from kubelet_trio.volumes.ownership import own_volume
root = Path(sys.argv[1])
for attempt in (
    lambda: KernelMounter().mount_hugetlbfs(root),
    lambda: own_volume(root, 5000, read_only=False),
):
    try:
        attempt()
    except OSError as exc:
        print(exc.errno, exc.strerror)
KernelMounter().mount_tmpfs(root, ["size=4096"])
print("tmpfs")
"""


def test_refusals_name_the_user_namespace(tmp_path: Path) -> None:
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    tried = subprocess.run([*enter, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no user namespaces here: {tried.stderr.strip()}")
    ran = [*enter, sys.executable, "-c", _INSIDE, str(tmp_path)]
    done = subprocess.run(ran, capture_output=True, text=True, check=True)
    hugetlbfs, group, tmpfs = done.stdout.splitlines()
    assert hugetlbfs == (
        "1 Operation not permitted (a user namespace may mount only tmpfs, overlayfs, FUSE and "
        "bind mounts)"
    )
    assert group == (
        "22 group 5000 does not exist in this user namespace: see /etc/subgid of its user"
    )
    assert tmpfs == "tmpfs"


class Refusing(HostTools):
    """mount(8) as it answers in a user namespace."""

    def run(self, tool: str, *arguments: str, limit: float = 0) -> ToolResult:
        return ToolResult(32, "mount: /m: permission denied.")


@pytest.mark.parametrize("inside", [False, True])
def test_so_does_what_mount_8_refuses(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounter, "in_user_namespace", lambda: inside)
    with pytest.raises(OSError, match="permission denied") as caught:
        run_mount("/dev/vdb", tmp_path, "ext4", (), Refusing())
    assert (
        str(caught.value).endswith(
            "(a user namespace may mount only tmpfs, overlayfs, FUSE and bind mounts)"
        )
        is inside
    )
