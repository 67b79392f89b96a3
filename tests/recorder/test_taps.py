"""The taps pass everything on, and note what passes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import trio
from lightkube.models.core_v1 import Node, Secret
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.cri import ExecResult, Runtime, RuntimeCallError, v1
from kubelet_trio.model import ContainerId, PodUid, inline_offload
from kubelet_trio.objects import LocalObjects, ObjectKey, ObjectNotFoundError
from kubelet_trio.pods import PodPlan
from kubelet_trio.recorder import (
    Entry,
    Kind,
    RecordedExits,
    RecordedInputs,
    RecordedMounter,
    RecordedObjects,
    RecordedRuntime,
    Recorder,
    Recording,
    VolumeNotes,
    read_body,
    read_entries,
    read_message,
)
from kubelet_trio.recorder.recorder import MOST_NOTES
from kubelet_trio.recorder.ring import segment_contents
from kubelet_trio.testing import FakeMounter, FakeRuntime, FaultKind, TrioClock

P = ParamSpec("P")
T = TypeVar("T")


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path, Recording(1 << 20, dict), TrioClock(), inline_offload)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "recorder"


async def taken(recorder: Recorder, directory: Path, *kinds: Kind) -> list[Entry]:
    """Return the entries of some kinds until now."""
    await recorder.flush()
    found = segment_contents(directory)
    entries = [one for path, data in found for one in read_entries(data, str(path))]
    return [one for one in entries if one.kind in kinds]


def config(uid: str = "u1") -> v1.PodSandboxConfig:
    meta = v1.PodSandboxMetadata(name="web", uid=uid, namespace="default")
    return v1.PodSandboxConfig(metadata=meta, labels={"io.kubernetes.pod.uid": uid})


async def test_calls_and_answers(recorder: Recorder, directory: Path) -> None:
    fake = FakeRuntime()
    runtime: Runtime = RecordedRuntime(fake, recorder)
    sandbox = await runtime.run_pod_sandbox(config(), "gvisor")
    fake.faults.add(FaultKind.ERROR, "StopPodSandbox", times=1)
    with pytest.raises(Exception, match="StopPodSandbox"):
        await runtime.stop_pod_sandbox(sandbox)
    run, stop = await taken(recorder, directory, Kind.CALL)
    assert (run.key, stop.key) == ("run_pod_sandbox", "stop_pod_sandbox")
    request = read_body(run.body)["request"]
    assert request["runtime_handler"] == "gvisor"
    assert read_message(v1.PodSandboxConfig, request["config"]) == config()
    first, second = await taken(recorder, directory, Kind.ANSWER)
    assert (first.key, read_body(first.body)) == ("1", {"ok": sandbox})
    assert second.key == "2"
    assert read_body(second.body)["error"] == "RuntimeCallError"


async def test_a_call_that_hangs_has_a_beginning_alone(
    recorder: Recorder, directory: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    fake = FakeRuntime()
    runtime = RecordedRuntime(fake, recorder)
    fake.faults.add(FaultKind.HANG, "RunPodSandbox", times=1)
    nursery.start_soon(runtime.run_pod_sandbox, config())
    await trio.sleep(100)
    assert len(await taken(recorder, directory, Kind.CALL)) == 1
    assert await taken(recorder, directory, Kind.ANSWER) == []
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
        (answer,) = await taken(recorder, directory, Kind.ANSWER)
    assert read_body(answer.body)["error"] == "Cancelled"


async def test_lists_are_noted_by_their_changes(recorder: Recorder, directory: Path) -> None:
    fake = FakeRuntime()
    runtime = RecordedRuntime(fake, recorder)
    await runtime.list_pod_sandboxes()
    first = await runtime.run_pod_sandbox(config("u1"))
    second = await runtime.run_pod_sandbox(config("u2"))
    listing = await runtime.list_pod_sandboxes()
    await runtime.list_pod_sandboxes(listing)
    await runtime.list_pod_sandboxes(uid=PodUid("u1"))
    await runtime.stop_pod_sandbox(first)
    await runtime.remove_pod_sandbox(first)
    await runtime.list_pod_sandboxes(uid=PodUid("u1"))
    fake.faults.add(FaultKind.ERROR, "ListPodSandbox", times=2)
    for _ in range(2):
        with pytest.raises(RuntimeCallError):
            await runtime.list_pod_sandboxes()
    await runtime.list_pod_sandboxes()
    reads = [(e.key, read_body(e.body)) for e in await taken(recorder, directory, Kind.READ)]
    found = [
        (
            key,
            [one["id"] for one in body["ok"]["entries"]] if "ok" in body else body["error"],
            body.get("ok", {}).get("gone"),
        )
        for key, body in reads
    ]
    assert found == [
        ("list_pod_sandboxes:", [], []),  # the first
        ("list_pod_sandboxes:", [first, second], []),
        ("list_pod_sandboxes:u1", [], [first]),
        ("list_pod_sandboxes:", "RuntimeCallError", None),
        ("list_pod_sandboxes:", [], []),
    ]


async def test_exits_are_known_by_their_container(
    recorder: Recorder, directory: Path, nursery: trio.Nursery
) -> None:
    fake = FakeRuntime()
    runtime = RecordedRuntime(fake, recorder)
    exits = RecordedExits(fake.exit_waiter, recorder, runtime.pids)
    sandbox = await runtime.run_pod_sandbox(config())
    made = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main"), image=v1.ImageSpec(image="run")
    )
    await runtime.pull_image(v1.ImageSpec(image="run"), None, config())
    container = await runtime.create_container(sandbox, made, config())
    await runtime.start_container(container)
    _, pid = await runtime.container_status(container, verbose=True)
    await runtime.container_status(container)
    with exits.open(pid) as watch:
        await runtime.stop_container(container, 0)
        await watch.wait_exited()
    with pytest.raises(ProcessLookupError):
        exits.open(pid)
    first, second = await taken(recorder, directory, Kind.EXIT)
    assert (first.key, read_body(first.body)) == (container, {"pid": pid})
    assert second.key == ""
    # An answer without the PID says nothing new.
    key = f"container_status:{container}"
    (status,) = [e for e in await taken(recorder, directory, Kind.READ) if e.key == key]
    assert read_body(status.body)["ok"]["pid"] == pid


async def test_mounts_have_a_beginning_and_an_end(recorder: Recorder, directory: Path) -> None:
    recorder.begin()
    mounter = RecordedMounter(FakeMounter(), VolumeNotes(recorder))
    place = directory.parent / "a"
    place.mkdir()
    mounter.mount_tmpfs(place, ["size=1", "password=planted"])
    with pytest.raises(OSError, match="/nothing"):
        mounter.unmount(Path("/nothing"))
    assert [mount.path for mount in mounter.mounts()] == [str(place)]
    entries = await taken(recorder, directory, Kind.VOLUME)
    assert [(e.key, read_body(e.body).get("call")) for e in entries] == [
        *(("mount_tmpfs", 1), ("mount_tmpfs", 1), ("unmount", 2), ("unmount", 2))
    ]
    begun, ended, _, failed = (read_body(entry.body) for entry in entries)
    assert begun["args"] == [str(place), ["size=1", "password=*left out*"]]
    assert ended == {"call": 1, "ok": None}
    assert failed["errno"] == errno.EINVAL


async def test_objects_are_noted_while_pods_hold_them(recorder: Recorder, directory: Path) -> None:
    documents = LocalObjects()
    store = RecordedObjects(documents, recorder)
    key, uid = ObjectKey("Secret", "default", "keys"), PodUid("u1")
    store.hold(uid, [key])
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError):
            await store.get(key, uid)
    for version in ("1", "1", "2"):
        meta = ObjectMeta(name="keys", namespace="default", resourceVersion=version)
        documents.apply({key: Secret(metadata=meta)})
        await store.get(key, uid)
    store.release(uid)
    entries = await taken(recorder, directory, Kind.OBJECT)
    assert {entry.key for entry in entries} == {"Secret/default/keys"}
    versions = [read_body(e.body)["metadata"]["resourceVersion"] for e in entries]
    assert versions == ["1", "2"]


async def test_the_node_without_its_images(recorder: Recorder, directory: Path) -> None:
    inputs = RecordedInputs(recorder)
    inputs.node(None)
    node = Node(metadata=ObjectMeta(name="n1", labels={"a": "b"}))
    inputs.node(node)
    inputs.node(node)
    (entry,) = await taken(recorder, directory, Kind.OBJECT)
    assert entry.key == "Node//n1"
    assert read_body(entry.body)["metadata"]["labels"] == {"a": "b"}


async def test_commands_are_told_apart_without_being_kept(
    recorder: Recorder, directory: Path
) -> None:
    class Answers(FakeRuntime):
        async def exec_sync(
            self, container_id: ContainerId, command: list[str], timeout_seconds: int
        ) -> ExecResult:
            await trio.lowlevel.checkpoint()
            return ExecResult(b"planted", b"", 3)

    runtime = RecordedRuntime(Answers(), recorder)
    for command in (["check", "planted"], ["check", "planted"], ["other"]):
        await runtime.exec_sync(ContainerId("c1"), command, 1)
    entries = await taken(recorder, directory, Kind.READ)
    assert len({entry.key for entry in entries}) == len(entries) == 2
    assert all(read_body(entry.body) == {"ok": {"exit_code": 3}} for entry in entries)
    assert not any(b"planted" in entry.key.encode() + entry.body for entry in entries)


async def test_a_runtime_that_says_the_same_of_itself_wakes_no_writer(
    tmp_path: Path, directory: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    writes = 0

    async def counting(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal writes
        writes += 1
        return await inline_offload(fn, *args, **kwargs)

    recorder = Recorder(tmp_path, Recording(1 << 20, dict), TrioClock(), counting)
    await nursery.start(recorder.run)
    fake = FakeRuntime()
    runtime = RecordedRuntime(fake, recorder)

    async def ask() -> None:
        await runtime.version()
        await runtime.status()
        await runtime.runtime_config()
        await trio.sleep(5)

    await ask()
    before = writes
    for _ in range(10):
        await ask()
    assert writes == before
    fake.faults.add(FaultKind.ERROR, "Status", times=1)
    with pytest.raises(RuntimeCallError):
        await ask()
    await ask()
    told = [read_body(e.body) for e in await taken(recorder, directory, Kind.READ)]
    assert ["error" if "error" in body else "ok" for body in told] == [*["ok"] * 3, "error", "ok"]


async def test_what_was_lost_is_told_when_it_is_said_again(
    tmp_path: Path, directory: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    recorder = Recorder(tmp_path, Recording(1 << 20, dict), TrioClock(), inline_offload)
    runtime, inputs = RecordedRuntime(FakeRuntime(), recorder), RecordedInputs(recorder)
    plan = PodPlan()
    for _ in range(MOST_NOTES):
        recorder.note(Kind.MARK, "", {"what": "full"})
    await runtime.status()
    inputs.plan(PodUid("u1"), plan)
    assert recorder.lost == 2
    await nursery.start(recorder.run)
    await trio.sleep(5)
    await runtime.status()
    inputs.plan(PodUid("u1"), plan)
    assert len(await taken(recorder, directory, Kind.READ)) == 1
    assert len(await taken(recorder, directory, Kind.PLAN)) == 1
