"""File servers that do not answer any more."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from kubelet_trio.volumes.hung import HungCalls
from kubelet_trio.volumes.mounter import run_mount_nfs


def test_a_call_that_hangs_is_waited_for_no_longer_than_its_time() -> None:
    calls, answer, begun = HungCalls(), threading.Event(), []

    def hang() -> None:
        begun.append(threading.current_thread())
        answer.wait(30)

    for _ in range(3):  # its pod tries again
        with pytest.raises(TimeoutError, match="did not answer"):
            calls.run("/mnt", hang, 0.05)
    assert len(begun) == 1  # and still there is one thread
    assert begun[0].daemon  # which holds up nobody's end
    calls.run("/other", lambda: None, 5)  # nor another path
    answer.set()
    begun[0].join(5)
    calls.run("/mnt", lambda: None, 5)


def test_what_a_call_raises_comes_back() -> None:
    def busy() -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    with pytest.raises(OSError, match="busy") as caught:
        HungCalls().run("/mnt", busy, 5)
    assert caught.value.errno == errno.EBUSY


def test_a_bug_in_a_call_is_its_callers() -> None:
    def broken() -> None:
        raise ValueError("embedded null byte")

    with pytest.raises(ValueError, match="embedded null byte"):
        HungCalls().run("/mnt", broken, 5)


def test_a_mount_helper_that_hangs_is_left_behind(tmp_path: Path) -> None:
    helper = tmp_path / "mount.nfs"
    new, pid, ended = tmp_path / "new", tmp_path / "pid", tmp_path / "ended"
    helper.write_text(
        f"#!{sys.executable}\nimport os, time\n"
        f"open({str(new)!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(new)!r}, {str(pid)!r})\n"
        f"time.sleep(600)\nopen({str(ended)!r}, 'w')\n"
    )
    helper.chmod(0o755)
    with pytest.raises(OSError, match="host:/x did not answer within 1 s"):
        run_mount_nfs("host:/x", tmp_path, [], [helper], 1)
    assert not ended.exists()
    for thread in threading.enumerate():
        if thread.name == "mount.nfs":
            thread.join()
    assert not ended.exists()  # it was killed
    if pid.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
