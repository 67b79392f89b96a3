"""What a program can do with pods of its embedded kubelet."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio import (
    ContainerUnavailableError,
    ExecResult,
    Kubelet,
    KubeletClosedError,
    KubeletConfig,
    KubeletFailedError,
    PodEndedError,
    PodExistsError,
    PodNotFoundError,
    open_kubelet,
)
from kubelet_trio.testing import Behaviour, FakeExec, FakeRuntime
from tests.embed.programs import GRACE, Machine, pod


async def test_a_pod_lives_as_long_as_its_scope(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    async with kubelet.run_pod(pod()) as running:
        await running.wait_ready()
        assert running.status.value.phase == "Running"
        assert [c.name for c in fake_runtime.alive()] == ["main"]
    assert running.is_gone
    assert not fake_runtime.sandboxes
    assert kubelet.pods.value == {}


async def test_a_program_asks_why(kubelet: Kubelet, autojump_clock: MockClock) -> None:
    async with kubelet.run_pod(pod()) as running:
        await running.wait_ready()
        why = running.why()
        assert why is not None
        assert (why.summary, why.wanted.source) == ("it runs and is ready", "embedded")
    assert running.why() is None


async def test_every_run_of_a_pod_is_a_new_pod(kubelet: Kubelet, autojump_clock: MockClock) -> None:
    uids = set()
    for _ in range(3):
        async with kubelet.run_pod(pod()) as running:
            uids.add(running.uid)
    assert len(uids) == 3


async def test_one_name_is_one_pod(kubelet: Kubelet, autojump_clock: MockClock) -> None:
    async with kubelet.run_pod(pod()):
        with pytest.raises(PodExistsError, match="default/web"):
            await kubelet.apply(pod())
        with pytest.raises(PodExistsError):
            async with kubelet.run_pod(pod()):
                pass


async def test_exec_gives_output_and_exit_code(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    fake_runtime.on_exec = lambda _container, command: FakeExec(
        takes=1, result=ExecResult(" ".join(command).encode(), b"oops", 3)
    )
    async with kubelet.run_pod(pod()) as running:
        with pytest.raises(ContainerUnavailableError, match="does not run now"):
            await running.exec(["early"])
        await running.wait_ready()
        result = await running.exec(["nft", "list"])
        assert (result.stdout, result.stderr, result.exit_code) == (b"nft list", b"oops", 3)
        with pytest.raises(ContainerUnavailableError, match="it has: main"):
            await running.exec(["x"], container="other")


async def test_a_pod_that_ends_is_not_waited_for_in_vain(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    async with kubelet.run_pod(pod(image="exit-3-after-5", restartPolicy="Never")) as running:
        assert (await running.wait_ended()).phase == "Failed"
        with pytest.raises(PodEndedError, match="main exited with 3"):
            await running.wait_ready()


async def test_a_container_that_cannot_start_says_why(short_path: Path) -> None:
    lost = {"name": "main", "image": "host", "command": ["no-such-program"]}
    manifest = {
        "metadata": {"name": "lost"},
        "spec": {"restartPolicy": "Never", "containers": [lost]},
    }
    config = KubeletConfig(root_dir=short_path, allow_root=True)
    with trio.fail_after(60):
        async with open_kubelet(config) as kubelet, kubelet.run_pod(manifest) as running:
            with pytest.raises(PodEndedError, match=r"main exited with 128: .*no-such-program"):
                await running.wait_ready()


async def test_a_pod_deleted_by_another_ends_the_wait(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    async with kubelet.run_pod(pod(image="missing-x")) as running, trio.open_nursery() as nursery:
        nursery.start_soon(running.delete)
        with pytest.raises(PodEndedError, match="was removed"):
            await running.wait_ready()


async def test_a_shorter_grace_period_counts(kubelet: Kubelet, autojump_clock: MockClock) -> None:
    (running,) = await kubelet.apply(pod(image="stubborn"))
    await running.wait_ready()
    began = trio.current_time()
    await running.delete(grace_period=2)
    assert trio.current_time() - began < GRACE


async def test_kept_pods_outlive_the_program_and_are_found_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    async with machine.opened() as kubelet:
        await kubelet.apply([pod("a"), pod("b")])
        async with kubelet.run_pod(pod("c"), keep=True) as running:
            await running.wait_ready()
        async with kubelet.run_pod(pod("scoped")):
            pass
        await kubelet.delete("b")
    alive = {c.sandbox.metadata.name: c.id for c in machine.runtime.alive()}
    assert alive.keys() == {"a", "c"}
    await trio.sleep(3600)
    async with machine.opened() as kubelet:
        await kubelet.get("a").wait_ready()
        (again,) = await kubelet.apply(pod("c"))
        await again.wait_ready()
        assert {c.sandbox.metadata.name: c.id for c in machine.runtime.alive()} == alive
        for name in ("a", "c"):
            await kubelet.delete(name)
        with pytest.raises(PodNotFoundError):
            kubelet.get("a")
    assert machine.leftovers() == []
    assert not (tmp_path / "a" / "kept.json").exists()


async def test_an_applied_pod_that_changed_is_replaced(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    (old,) = await kubelet.apply(pod())
    await old.wait_ready()
    (same,) = await kubelet.apply(pod())
    assert same is old
    (new,) = await kubelet.apply(pod(image="web:2"))
    await new.wait_ready()
    assert old.is_gone
    assert [c.image_id for c in fake_runtime.alive()] == [fake_runtime.alive()[0].image_id]
    await new.delete()


async def test_a_kept_file_that_does_not_parse_ends_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    async with machine.opened() as kubelet:
        (running,) = await kubelet.apply(pod())
        await running.wait_ready()
    (tmp_path / "a" / "kept.json").write_text("{")
    with pytest.raises(KubeletFailedError, match=r"kept\.json does not parse"):
        async with machine.opened():
            pass
    assert machine.runtime.alive()


async def test_logs_are_lines_and_follow_a_container_over_its_restarts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime(
        write_logs=True,
        behave=lambda config: Behaviour(exits_after=5, exit_code=1, output="one\ntwo\n"),
    )
    async with Machine(tmp_path, runtime).opened() as kubelet:
        async with kubelet.run_pod(pod()) as running:
            lines = []
            async for line in running.logs(follow=True):
                lines.append(line)
                if len(lines) == 6:
                    break
            assert lines == ["one", "two"] * 3
            assert [line async for line in running.logs(tail=1)] == ["two"]
            previous = [line async for line in running.logs(previous=True, timestamps=True)]
            assert [line.split()[1] for line in previous] == ["one", "two"]


async def test_a_followed_log_ends_with_its_container(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime(
        write_logs=True,
        behave=lambda config: Behaviour(exits_after=5, output="all there is\n"),
    )
    async with Machine(tmp_path, runtime).opened() as kubelet:
        async with kubelet.run_pod(pod(restartPolicy="Never")) as running:
            with trio.fail_after(60):
                lines = [line async for line in running.logs(follow=True)]
            assert lines == ["all there is"]


async def test_a_watch_tells_what_is_there_and_what_happens(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    await kubelet.apply(pod("a"))
    await kubelet.get("a").wait_ready()
    seen = []

    async def watch() -> None:
        async for change in kubelet.watch():
            assert change.pod.metadata is not None
            seen.append((change.type, change.pod.metadata.name))
            if change.type == "DELETED":
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        async with kubelet.run_pod(pod("b")) as running:
            await running.wait_ready()
    assert seen[0] == ("ADDED", "a")
    assert ("ADDED", "b") in seen
    assert ("MODIFIED", "b") in seen
    assert seen[-1] == ("DELETED", "b")
    await kubelet.delete("a")


async def test_events_come_as_they_happen(kubelet: Kubelet, autojump_clock: MockClock) -> None:
    async with kubelet.run_pod(pod()) as running:
        reasons = []
        async for event in kubelet.events():
            reasons.append(event.reason)
            if event.reason == "Started":
                break
        assert "Created" in reasons
        assert running.status.value.phase


async def test_streams_end_with_the_kubelet_and_handles_say_that_it_ended(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with Machine(tmp_path).opened() as kubelet:
        (running,) = await kubelet.apply(pod(image="missing-x"))
        changes, events = kubelet.watch(), kubelet.events()
    with trio.fail_after(60):
        assert {change.type async for change in changes} <= {"ADDED"}
        assert {event.type async for event in events} <= {"Normal", "Warning"}
    with pytest.raises(KubeletClosedError):
        await running.wait_ready()
    with pytest.raises(KubeletClosedError):
        await kubelet.apply(pod("late"))


async def test_a_second_kubelet_in_one_directory_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    async with machine.opened():
        with pytest.raises(KubeletFailedError, match="runs on"):
            async with machine.opened():
                pass


async def test_a_kubelet_that_fails_cancels_the_block_and_says_why(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    machine.runtime.status = None  # type: ignore[assignment]  # a bug in a part of the agent
    with pytest.raises(KubeletFailedError):
        async with machine.opened():
            await trio.sleep_forever()


async def test_a_pod_with_a_config_map_in_its_yaml(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    text = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {GREETING: hello}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
    - {name: main, image: web, imagePullPolicy: IfNotPresent}
"""
    async with kubelet.run_pod(text) as running:
        await running.wait_ready()
