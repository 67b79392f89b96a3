from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from kubelet_trio.cri import v1
from kubelet_trio.gc import LogRotation, LogRotationPolicy, RunningLog
from kubelet_trio.gc.log_files import compress
from kubelet_trio.model import ContainerId, SandboxId, inline_offload
from kubelet_trio.testing import FakeRuntime, FaultKind, TrioClock
from tests.harness.hostile import no_hang

LINE = b"2024-05-01T10:00:00Z stdout F x\n"


class Node:
    """One container that writes a log, and its rotation."""

    def __init__(self, directory: Path, policy: LogRotationPolicy) -> None:
        self.directory = directory
        self.runtime = FakeRuntime(write_logs=True)
        self.id = ContainerId("")
        self.sandbox = SandboxId("")
        self.path = directory / "web" / "0.log"
        self.path.parent.mkdir()
        self.rotation = LogRotation(self.runtime, self.running, policy, TrioClock(), inline_offload)

    async def start(self) -> None:
        sandbox = v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(name="web", uid="u", namespace="default"),
            log_directory=str(self.directory),
        )
        config = v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name="web"),
            image=v1.ImageSpec(image="web"),
            log_path="web/0.log",
        )
        self.runtime.images.present.add("web")
        self.sandbox = await self.runtime.run_pod_sandbox(sandbox)
        self.id = await self.runtime.create_container(self.sandbox, config, sandbox)
        await self.runtime.start_container(self.id)

    def running(self) -> list[RunningLog]:
        return [RunningLog(c.id, c.log_path) for c in self.runtime.alive()]

    def write(self, count: int = 10) -> None:
        with self.path.open("ab") as log:
            log.write(LINE * count)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.iterdir())

    def content(self) -> bytes:
        """Return what all files of the log hold together, oldest first."""
        *rotated, live = sorted(self.path.parent.iterdir(), key=lambda p: (p == self.path, p))
        return b"".join(_read(p) for p in (*rotated, live))


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    node = Node(tmp_path, LogRotationPolicy(max_size=100, max_files=4, interval=10))
    await node.start()
    return node


async def test_a_small_log_is_left_alone(node: Node, autojump_clock: MockClock) -> None:
    node.write(1)
    await node.rotation.sweep()
    assert node.names() == ["0.log"]


async def test_a_flood_is_rotated_compressed_and_cut(node: Node, autojump_clock: MockClock) -> None:
    for _ in range(6):
        node.write()
        await node.rotation.sweep()
        await trio.sleep(10)
    names = node.names()
    assert len(names) == 4
    assert [name.endswith(".gz") for name in names] == [False, True, True, False]
    assert names[0] == "0.log"
    assert node.path.read_bytes() == b""
    assert node.content() == LINE * 30
    assert dict(node.rotation.meter.counters("kubelet_trio_log_rotations_total")) == {(): 6}


async def test_it_looks_at_every_interval(node: Node, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(node.rotation.run)
        await trio.sleep(6)
        node.write()
        await trio.sleep(8)
        assert node.names() == ["0.log"]
        await trio.sleep(2)
        assert len(node.names()) == 2
        nursery.cancel_scope.cancel()


async def test_a_failed_reopening_gives_the_log_its_name_back(
    node: Node, autojump_clock: MockClock
) -> None:
    node.write()
    node.runtime.faults.add(FaultKind.ERROR, "ReopenContainerLog")
    await node.rotation.sweep()
    assert node.names() == ["0.log"]
    await node.rotation.sweep()
    assert len(node.names()) == 2
    assert node.content() == LINE * 10


async def test_a_reply_that_is_lost_does_not_undo_the_reopening(
    node: Node, autojump_clock: MockClock
) -> None:
    node.write()
    node.runtime.faults.add(FaultKind.LOST_REPLY, "ReopenContainerLog")
    await node.rotation.sweep()
    assert len(node.names()) == 2
    assert node.path.read_bytes() == b""


async def test_an_agent_that_dies_between_rename_and_reopening(
    node: Node, autojump_clock: MockClock
) -> None:
    """The container writes on into the rotated file; the next agent has it reopened."""
    node.write()
    aside = node.path.rename(node.path.with_name("0.log.20240501-100000"))
    await node.rotation.sweep()
    assert node.names() == ["0.log", aside.name]
    assert not list(node.rotation.meter.counters("kubelet_trio_log_rotations_total"))


async def test_an_agent_that_is_stopped_while_the_runtime_hangs(
    node: Node, autojump_clock: MockClock
) -> None:
    node.write()
    node.runtime.faults.add(FaultKind.HANG, "ReopenContainerLog")
    with trio.move_on_after(1):
        await node.rotation.sweep()
    assert "0.log" not in node.names()
    await node.rotation.sweep()
    assert "0.log" in node.names()
    assert node.content() == LINE * 10


async def test_a_crash_while_compressing_leaves_nothing_behind(
    node: Node, autojump_clock: MockClock
) -> None:
    rotated = node.path.with_name("0.log.20240501-100000")
    rotated.write_bytes(LINE)
    rotated.with_name(f"{rotated.name}.tmp").write_bytes(b"half")
    node.write()
    await node.rotation.sweep()
    assert f"{rotated.name}.gz" in node.names()
    assert not any(name.endswith(".tmp") for name in node.names())
    assert node.content() == LINE * 11


async def test_a_log_that_stays_away_is_not_asked_for_at_every_round(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.node.write_logs = False
    node.path.unlink()
    for _ in range(20):
        await node.rotation.sweep()
        await trio.sleep(10)
    assert len(node.runtime.calls_of("ReopenContainerLog")) == 1


async def test_a_container_that_ends_meanwhile_keeps_its_log(
    node: Node, autojump_clock: MockClock
) -> None:
    node.write()
    running = node.running()
    node.runtime.forget(node.id)
    node.rotation.running = lambda: running
    await node.rotation.sweep()
    assert node.names() == ["0.log"]
    assert node.content() == LINE * 10


async def test_compressed_files_keep_their_mode(node: Node, autojump_clock: MockClock) -> None:
    node.path.chmod(0o640)
    for _ in range(2):
        node.write()
        await node.rotation.sweep()
    (packed,) = [p for p in node.path.parent.iterdir() if p.suffix == ".gz"]
    assert packed.stat().st_mode & 0o777 == 0o640


async def test_a_path_that_cannot_be_looked_at_keeps_no_other_log_from_rotating(
    node: Node, autojump_clock: MockClock, tmp_path: Path
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    bad = RunningLog(ContainerId("bad"), str(loop / "0.log"))
    rotation = LogRotation(
        node.runtime,
        lambda: [bad, *node.running()],
        LogRotationPolicy(max_size=100),
        TrioClock(),
        inline_offload,
    )
    node.write()
    with structlog.testing.capture_logs() as logged:
        await rotation.sweep()
        await rotation.sweep()
    assert len(node.names()) == 2
    assert [(entry["event"], entry["path"]) for entry in logged if "path" in entry] == [
        ("log.rotation_failed", bad.path)
    ]
    # Nor is the runtime asked to open a log that may well be there.
    assert [call.target for call in node.runtime.calls_of("ReopenContainerLog")] == [node.id]


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
async def test_what_is_no_log_is_not_compressed(
    node: Node, autojump_clock: MockClock, tmp_path: Path, kind: str
) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("root:x")
    planted = node.path.with_name("0.log.20200101-000000")
    if kind == "link":
        planted.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(planted)
    else:
        planted.mkdir()
    node.write()
    with structlog.testing.capture_logs() as logged:
        await node.rotation.sweep()
    # The log is rotated all the same.
    assert node.path.read_bytes() == b""
    assert len([name for name in node.names() if name != planted.name]) == 2
    assert not list(node.path.parent.glob("*.gz"))
    assert planted.name in str([e["error"] for e in logged if e["event"] == "log.rotation_failed"])


def test_a_temporary_file_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    target, log = tmp_path / "target", tmp_path / "0.log.20200101-000000"
    target.write_text("precious")
    log.write_bytes(LINE)
    log.with_name(log.name + ".tmp").symlink_to(target)
    with pytest.raises(FileExistsError):
        compress(log)
    assert target.read_text() == "precious"
    assert log.read_bytes() == LINE


def test_a_log_that_a_writer_holds_open_is_compressed_with_its_mode(tmp_path: Path) -> None:
    log = tmp_path / "0.log.20200101-000000"
    log.write_bytes(LINE)
    log.chmod(0o640)
    compress(log)
    (packed,) = tmp_path.iterdir()
    assert packed.name == f"{log.name}.gz"
    assert gzip.decompress(packed.read_bytes()) == LINE
    assert packed.stat().st_mode & 0o777 == 0o640


def test_a_rotated_log_of_a_terabyte_of_nothing_costs_no_time(tmp_path: Path) -> None:
    path = tmp_path / "0.log.20240501-101112"
    path.write_bytes(LINE)
    os.truncate(path, 1 << 40)
    with no_hang(10):
        compress(path)
    packed = path.with_name(path.name + ".gz")
    assert gzip.decompress(packed.read_bytes()).rstrip(b"\0") == LINE
