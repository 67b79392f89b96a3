"""Processes that the kernel killed for lack of memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from kubelet_trio.model import ContainerId, EventType, ObjectRef, pod_ref
from kubelet_trio.pressure import OomWatcher, parse_kill

ID = "ab" * 32
POD = f"/kubepods/burstable/pod0f-1/{ID}"
IN_CONTAINER = (
    "4,1234,98765,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,"
    f"mems_allowed=0,oom_memcg={POD},task_memcg={POD},task=stress-ng,pid=4321,uid=0"
)
OF_MACHINE = (
    "4,1235,98766,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,"
    "mems_allowed=0,global_oom,task_memcg=/user.slice,task=a, b,pid=7,uid=1000"
)
SLICED = IN_CONTAINER.replace(
    POD, f"/kubepods.slice/kubepods-pod0f.slice/cri-containerd-{ID}.scope"
)


@pytest.mark.parametrize("line", [IN_CONTAINER, SLICED])
def test_a_kill_in_a_container_is_its_own(line: str) -> None:
    kill = parse_kill(line)
    assert kill is not None
    assert (kill.process, kill.pid, kill.is_system) == ("stress-ng", 4321, False)
    assert kill.container_id == ID


def test_a_kill_because_the_machine_ran_out_is_the_nodes() -> None:
    kill = parse_kill(OF_MACHINE)
    assert kill is not None
    assert (kill.process, kill.pid, kill.is_system) == ("a, b", 7, True)
    assert kill.container_id is None


@pytest.mark.parametrize("line", ["", "oom-kill:", "6,1,1,-;eth0: link up", "oom-kill:constraint="])
def test_other_lines_tell_of_none(line: str) -> None:
    assert parse_kill(line) is None


class Told:
    """Events as they come."""

    def __init__(self) -> None:
        self.send, self.receive = trio.open_memory_channel[tuple[ObjectRef, str, str]](10)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.send.send_nowait((involved, reason, message))


def container(container_id: ContainerId) -> ObjectRef | None:
    return pod_ref("ns", "pod", "0f-1", "spec.containers{web}") if container_id == ID else None


async def test_what_the_kernel_logs_becomes_events(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    keep = os.open(log, os.O_RDWR | os.O_NONBLOCK)
    told = Told()
    watcher = OomWatcher("node", told, container, log)
    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(watcher.run)
                os.write(keep, f"6,1,1,-;hello\n{IN_CONTAINER}\n{OF_MACHINE}\n".encode())
                involved, reason, message = await told.receive.receive()
                assert (involved.name, reason) == ("pod", "OOMKilling")
                assert "stress-ng (pid 4321)" in message
                involved, reason, message = await told.receive.receive()
                assert (involved.kind, reason) == ("Node", "SystemOOM")
                assert message == "System OOM encountered, victim process: a, b, pid: 7"
                nursery.cancel_scope.cancel()
    finally:
        os.close(keep)
    assert (watcher.system_kills, watcher.container_kills) == (1, 1)


async def test_without_a_log_nothing_is_told_and_nothing_fails(tmp_path: Path) -> None:
    watcher = OomWatcher("node", Told(), container, tmp_path / "none")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.run)
            nursery.cancel_scope.cancel()
