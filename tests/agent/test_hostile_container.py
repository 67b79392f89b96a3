"""A container that does its worst to whatever it may write to, while the agent works there.

It owns its emptyDir, a content volume as where nothing is mounted read-only, and, as a pod that
collects logs, all below the pods' log directory and the links to the logs. It acts at rest and
between any two system calls of the agent's: `KUBELET_TRIO_HOSTILE_STEPS` says how many steps of the
agent's are tried.
"""

from __future__ import annotations

import datetime
import gzip
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import trio
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from trio.testing import MockClock

from kubelet_trio.containers import (
    LogOptions,
    follow_log,
    has_hosts,
    link_log,
    make_log_directory,
    next_restart_count,
    poll_watch,
    read_termination_message,
    remove_links,
    remove_pod_logs,
    unlink_logs,
    write_hosts,
)
from kubelet_trio.containers.logs.cri_log import read_log
from kubelet_trio.gc.log_files import (
    log_sizes,
    make_room,
    pod_log_directories,
    put_back,
    remove_log_directories,
    remove_old_logs,
    set_aside,
)
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    PodUid,
    SandboxId,
    inline_offload,
)
from kubelet_trio.pressure.signals import tree_usage
from kubelet_trio.stats.subjects import PodSubject
from kubelet_trio.stats.volumes import measure_volumes
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import VolumeError
from kubelet_trio.volumes.atomic import File, write_payload
from kubelet_trio.volumes.errors import SubPathError
from kubelet_trio.volumes.hung import HungCalls
from kubelet_trio.volumes.ownership import own_tree, own_volume
from kubelet_trio.volumes.sub_path import bind_sub_path, read_inside
from kubelet_trio.volumes.teardown import tear_down
from tests.containers.make import pod
from tests.harness.hostile import Act, Outside, Player, acts, between_calls, no_hang

T = TypeVar("T")

NOON = 1_769_860_800.0
STEPS = int(os.environ.get("KUBELET_TRIO_HOSTILE_STEPS", "200"))
ROUND = 20  # steps of one machine

LINE = b"2024-05-01T10:00:00Z stdout F mine\n"
LOGS = "pods/default_web_u-1"
PLACES = {
    "data": ["env", "sub", "sub/dir", "sub/dir/file", "mount", "message", "far"],
    "content": ["..data", "..data_tmp", "key", "dir", "new", "new/key", "..mine"],
    "logs": [
        LOGS,
        f"{LOGS}/main",
        f"{LOGS}/main/0.log",
        f"{LOGS}/main/1.log",
        f"{LOGS}/main/0.log.20240501-101112",
        f"{LOGS}/main/0.log.20240501-101112.tmp",
        f"{LOGS}/main/0.log.20240501-101112.gz",
        f"{LOGS}/main/0.log.99991231-235959",
        f"{LOGS}/main/99999999999999999999.log",
        # Not the directory: that is the node's, and may be a link to another disk.
        "containers/web_default_main-1.log",
    ],
}
SUB_PATHS = ["sub", "sub/dir", "sub/dir/file", "far/x", "env", "new/deep", "sub/../sub"]


class Hostile(RuleBasedStateMachine):
    """See the module."""

    @initialize()
    def begin(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="hostile-"))
        self.outside = Outside(self.base / "outside")
        pod_dir = self.base / "root/pods/u-1"
        volumes = pod_dir / "volumes"
        self.pod_dir = pod_dir
        self.grounds = {
            "data": volumes / "kubernetes.io~empty-dir/data",
            "content": volumes / "kubernetes.io~configmap/config",
            "logs": self.base / "logs",
        }
        self.log = self.grounds["logs"] / LOGS / "main/0.log"
        self.links = self.grounds["logs"] / "containers"
        self.mounter = FakeMounter()
        self.hung = HungCalls()
        self.make()

    def make(self) -> None:
        """Make what is not there, as for a pod that starts."""
        data = self.grounds["data"]
        if not data.exists():
            (data / "sub/dir").mkdir(parents=True)
            (data / "env").write_text("A='1'")
        self.grounds["content"].mkdir(parents=True, exist_ok=True)
        self.grounds["logs"].mkdir(exist_ok=True)
        if not os.path.lexists(self.log.parents[1]):
            with suppress(OSError):
                make_log_directory(self.log.parent)
                self.log.write_bytes(LINE * 3)
                link_log(self.links / "web_default_main-1.log", self.log)

    def teardown(self) -> None:
        if hasattr(self, "base"):
            shutil.rmtree(self.base)

    # The container

    @rule(ground=st.sampled_from(sorted(PLACES)), data=st.data())
    def act(self, ground: str, data: st.DataObject) -> None:
        data.draw(acts(PLACES[ground], self.outside.directory)).do(self.grounds[ground])

    @rule(content=st.sampled_from([LINE, b"A='1'\n", b"A='", b"\0" * 70_000, b"\xff\n"]))
    def write(self, content: bytes) -> None:
        for path in (self.log, self.grounds["data"] / "env"):
            with suppress(OSError):
                descriptor = os.open(
                    path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_APPEND
                )
                os.write(descriptor, content)
                os.close(descriptor)

    # The agent

    def do(self, ground: str, data: st.DataObject, work: Callable[[], object]) -> object:
        """Work, with the container's acts in between. What fails says so in the usual way."""
        act = acts(PLACES[ground], self.outside.directory)
        schedule: dict[int, Act] = data.draw(st.dictionaries(st.integers(0, 60), act, max_size=4))
        before = _open_files()
        found = None
        with no_hang(), between_calls(Player(self.grounds[ground], schedule).act):
            try:
                found = work()
            except (OSError, VolumeError, SubPathError) as exc:
                str(exc).encode("utf-8", "backslashreplace")
        assert _open_files() == before
        assert "untold" not in str(found)
        return found

    @rule(data=st.data(), names=st.sets(st.sampled_from(["key", "dir/key", "other"])))
    def write_content(self, data: st.DataObject, names: set[str]) -> None:
        payload = {name: File(b"1", 0o644) for name in names if name != "key" or "dir" not in names}

        def own(descriptor: int) -> None:
            own_tree(descriptor, os.getgid(), read_only=True)

        self.do(
            "content",
            data,
            lambda: write_payload(self.grounds["content"], payload, NOON, own),
        )

    @rule(data=st.data(), path=st.sampled_from(SUB_PATHS))
    def bind(self, data: st.DataObject, path: str) -> None:
        target = self.pod_dir / "volume-subpaths/data/main/0"
        root = self.grounds["data"]
        # By descriptors alone, in this thread: that is where the container gets in between.
        self.do(
            "data", data, lambda: bind_sub_path(root, path, target, self.mounter, InThisThread())
        )
        for mount in self.mounter.mounts():
            assert Path(mount.root).is_relative_to(root)
            self.mounter.unmount(target)

    @rule(data=st.data(), path=st.sampled_from(["env", "sub/dir/file", "far", "message"]))
    def read_file(self, data: st.DataObject, path: str) -> None:
        self.do("data", data, lambda: read_inside(self.grounds["data"], path, 64 * 1024))

    @rule(data=st.data())
    def read_message(self, data: st.DataObject) -> None:
        record = ContainerRecord(
            ContainerId("c"), "main", SandboxId("s"), ContainerState.EXITED, 0, 0.0, exit_code=1
        )
        record = _with(record, str(self.grounds["data"] / "message"), str(self.log))
        self.do("data", data, lambda: read_termination_message(record))
        self.do("logs", data, lambda: read_termination_message(record))

    @rule(data=st.data(), tail=st.sampled_from([None, 0, 1, 5]))
    def read_a_log(self, data: st.DataObject, tail: int | None) -> None:
        self.do("logs", data, lambda: b"".join(read_log(self.log, LogOptions(tail=tail))))

    @rule(data=st.data())
    def follow_a_log(self, data: st.DataObject) -> None:
        looks = iter([self.log, self.log, self.log.with_name("1.log"), None])

        async def follow() -> bytes:
            pieces = b""
            async with follow_log(
                self.log,
                LogOptions(),
                lambda: next(looks, None),
                offload=inline_offload,
                open_watch=poll_watch,
            ) as log:
                async for piece in log:
                    pieces += piece
            return pieces

        self.do("logs", data, lambda: trio.run(follow, clock=MockClock(autojump_threshold=0)))

    @rule(data=st.data(), most=st.sampled_from([2, 3, 5]))
    def rotate(self, data: st.DataObject, most: int) -> None:
        def work() -> None:
            log_sizes([str(self.log)])
            make_room(self.log, most)
            rotated = set_aside(self.log, datetime.datetime(2026, 1, 1))
            put_back(rotated, self.log)

        self.do("logs", data, work)

    @rule(data=st.data())
    def collect_logs(self, data: st.DataObject) -> None:
        def work() -> int:
            remove_old_logs(self.log.parent, {1})
            remove_links(self.links, {"/nowhere"})
            return next_restart_count(self.log.parent)

        found = self.do("logs", data, work)
        assert found is None or (isinstance(found, int) and found < 2**31)

    @rule(data=st.data())
    def make_logs(self, data: st.DataObject) -> None:
        def work() -> None:
            make_log_directory(self.log.parent)
            link_log(self.links / "web_default_main-1.log", self.log)

        self.do("logs", data, work)

    @rule(data=st.data())
    def measure(self, data: st.DataObject) -> None:
        subject = PodSubject(PodUid("u-1"), "web", "default", volumes=frozenset(("data", "config")))
        root, names = str(self.base / "root"), {name: name for name in subject.volumes}
        self.do("data", data, lambda: measure_volumes(root, subject, names, NOON))
        self.do("content", data, lambda: tree_usage(str(self.grounds["content"])))
        self.do("logs", data, lambda: tree_usage(str(self.log.parent)))

    @rule(data=st.data(), policy=st.sampled_from(["Always", "OnRootMismatch"]))
    def own(self, data: st.DataObject, policy: str) -> None:
        root = self.grounds["data"]
        self.do("data", data, lambda: own_volume(root, 4242, read_only=False, policy=policy))

    @rule(endless=st.booleans())
    def hosts(self, endless: bool) -> None:
        write_hosts(self.pod_dir, "1")
        if endless:
            os.truncate(self.pod_dir / "etc-hosts", 1 << 40)
        assert has_hosts(self.pod_dir, "1") != endless

    @rule(data=st.data(), ground=st.sampled_from(["data", "content"]))
    def remove_volumes(self, data: st.DataObject, ground: str) -> None:
        self.do(ground, data, lambda: tear_down(self.pod_dir, self.mounter))
        tear_down(self.pod_dir, self.mounter)
        assert not (self.pod_dir / "volumes").exists()
        self.make()

    @rule(data=st.data())
    def remove_logs(self, data: st.DataObject) -> None:
        directory = self.log.parents[1]

        def work() -> None:
            unlink_logs(self.links, pod(), directory)
            for directories in pod_log_directories(directory.parent).values():
                remove_log_directories(directories)
            remove_pod_logs(directory)

        self.do("logs", data, work)
        self.make()

    @precondition(lambda self: hasattr(self, "outside"))
    @invariant()
    def the_host_is_as_it_was(self) -> None:
        self.outside.check()
        packed = [p for p in self.log.parent.glob("*.gz") if p.is_file() and not p.is_symlink()]
        for path in packed:
            if path.stat().st_nlink == 1 and path.stat().st_size < 1 << 20:
                with suppress(OSError, EOFError):
                    assert b"untold" not in gzip.decompress(path.read_bytes())


def _open_files() -> dict[str, str]:
    """Return what this process has open, but for what the listing itself opens."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


class InThisThread(HungCalls):
    """Nothing hangs here, and the container gets in between in this thread only."""

    def run(
        self,
        path: str,
        call: Callable[[], T],
        seconds: float,
        discard: Callable[[T], object] = lambda _: None,
    ) -> T:
        return call()


def _with(record: ContainerRecord, message: str, log: str) -> ContainerRecord:
    return replace(
        record,
        termination_message_path=message,
        log_path=log,
        annotations={"io.kubernetes.container.terminationMessagePolicy": "FallbackToLogsOnError"},
    )


def test_a_hostile_container_gains_nothing() -> None:
    run_state_machine_as_test(
        Hostile,
        settings=settings(
            max_examples=max(STEPS // ROUND, 1),
            stateful_step_count=ROUND,
            deadline=None,
            # A step costs milliseconds, and what it does hangs on all before it: making one
            # smaller takes longer than reading it.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
        ),
    )
