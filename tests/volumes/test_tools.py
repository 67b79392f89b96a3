"""Programs of the host: deadlines, bounded output, children, and what is missing."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from kubelet_trio.volumes.errors import MissingToolError
from kubelet_trio.volumes.mounter import run_mount
from kubelet_trio.volumes.tools import MAX_OUTPUT, HostTools
from tests.harness.pods import eventually


def script(place: Path, name: str, text: str) -> HostTools:
    """A program in a directory, and the tools of that directory."""
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!{sys.executable}\nimport os, sys, subprocess, time\n{text}\n")
    (place / name).chmod(0o755)
    return HostTools((str(place),))


def test_exit_status_and_output_are_returned(tmp_path: Path) -> None:
    tools = script(tmp_path / "bin", "blkid", "print(*sys.argv[1:])\nsys.exit(2)")
    done = tools.run("blkid", "-p", "a b")
    assert (done.code, done.output, done.ending) == (2, "-p a b\n", "exit status 2")


def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    text = "print(*sorted(k for k in os.environ if k != 'LC_CTYPE'), os.getcwd())"
    tools = script(tmp_path / "bin", "blkid", text)
    assert tools.run("blkid").output == "HOME LC_ALL PATH /\n"


def test_output_is_bounded(tmp_path: Path) -> None:
    tools = script(tmp_path / "bin", "fsck", "sys.stdout.write('x' * 3_000_000)")
    done = tools.run("fsck")
    assert (done.code, len(done.output)) == (0, MAX_OUTPUT)


def test_an_error_has_little_of_the_output(tmp_path: Path) -> None:
    tools = script(tmp_path / "bin", "mount", "print('x' * 50_000)\nsys.exit(32)")
    with pytest.raises(OSError, match="mount failed: exit status 32") as caught:
        run_mount("/dev/sdz", Path("/mnt"), "ext4", [], tools)
    assert len(str(caught.value)) < 1200


def test_what_overstays_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)"
    )
    tools = script(tmp_path / "bin", "iscsiadm", text)
    for limit in (3, 30, 300):  # a slow machine needs more, to start Python
        with pytest.raises(OSError, match=f"iscsiadm did not finish within {limit} s") as caught:
            tools.run("iscsiadm", limit=limit)
        assert caught.value.errno == errno.ETIMEDOUT
        if pids.exists() and pids.read_text():
            break
    own, child = map(int, pids.read_text().split())
    for thread in threading.enumerate():
        if thread.name == "iscsiadm":
            thread.join(10)
    with pytest.raises(ProcessLookupError):
        os.kill(own, 0)
    eventually(lambda: has_ended(child), what="the child has ended")


def has_ended(pid: int) -> bool:
    """Whether a process has ended; a zombie that init has not reaped yet has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def test_a_child_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    """FlexVolume drivers start file systems in user space, some of which keep the output open."""
    pid = tmp_path / "pid"
    text = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\nprint('done')"
    )
    tools = script(tmp_path / "bin", "mount.fuse", text)
    try:
        assert tools.run("mount.fuse", limit=60).output == "done\n"
        os.kill(int(pid.read_text()), 0)
    finally:
        os.kill(int(pid.read_text()), 9)


def test_a_killed_program_is_told(tmp_path: Path) -> None:
    tools = script(tmp_path / "bin", "fsck", "os.kill(os.getpid(), 15)")
    done = tools.run("fsck")
    assert (done.code, done.ending, done.failure) == (-15, "signal: Terminated", done.ending)


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ("iscsiadm", r"iscsiadm is missing: install open-iscsi \(Debian\) or iscsi-initiator-"),
        ("mkfs.xfs", r"mkfs\.xfs is missing: install xfsprogs \(Debian\) or xfsprogs \(Fedora\)"),
        ("multipath", r"multipath is missing: install multipath-tools \(Debian\) or device-"),
        ("mkfs.zfs", r"mkfs\.zfs is missing or cannot be executed"),
    ],
)
def test_packages_of_a_missing_program_are_named(tmp_path: Path, tool: str, message: str) -> None:
    with pytest.raises(MissingToolError, match=message):
        HostTools((str(tmp_path),)).run(tool)


def test_a_file_that_is_no_program_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "blkid").write_bytes(b"\x7fELF")
    (tmp_path / "blkid").chmod(0o755)
    with pytest.raises(OSError, match="Exec format error"):
        HostTools((str(tmp_path),)).run("blkid")


def test_a_failed_mount_has_the_text_of_mount_utils(tmp_path: Path) -> None:
    tools = script(tmp_path / "bin", "mount", "print('bad superblock')\nsys.exit(32)")
    with pytest.raises(OSError, match="mount failed") as caught:
        run_mount("/dev/sdz", Path("/mnt"), "ext4", ["noatime", "defaults"], tools)
    assert str(caught.value) == (
        "mount failed: exit status 32\nMounting command: mount\n"
        "Mounting arguments: -t ext4 -o noatime,defaults /dev/sdz /mnt\nOutput: bad superblock\n"
    )
