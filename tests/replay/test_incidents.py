"""Three incidents: explained by `why` on one screen, recorded, and replayed as tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from kubelet_trio.agent import Agent
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.pods.plan.backoff import BackOffEntry, BackOffPolicy
from kubelet_trio.pods.worker import standing
from kubelet_trio.replay import Replay, ReplayDivergedError, replay_recording
from kubelet_trio.testing import Behaviour, FakeRuntime, FaultKind
from tests.agent.node import Node, make_pod
from tests.replay.recordings import HangingMounter, record, screen


def call_times(found: Replay, text: str) -> list[float]:
    """Return when a call was made, in seconds from the beginning."""
    calls = [d for d in found.decisions if d.kind == "call" and d.text.startswith(text)]
    return [round(d.at - found.began, 1) for d in calls]


def reasons(found: Replay) -> str:
    return "\n".join(d.text for d in found.decisions if d.kind == "why")


# A crash loop by OOM


@pytest.fixture
def oom(tmp_path: Path) -> Path:
    """A container that is killed for memory a second after each start."""
    node = Node(tmp_path)
    node.runtime = FakeRuntime(
        behave=lambda _config: Behaviour(exits_after=1.0, exit_code=137, reason="OOMKilled"),
        status_lag=0.06,
    )
    node.runtime.latency = {"": 0.02}
    hog = make_pod(containers="- {name: web, image: web, resources: {limits: {memory: 16Mi}}}")

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(hog)
        await trio.sleep(60)
        lines = screen(agent, hog)
        assert "code 137 (OOMKilled, its memory limit is 16Mi)" in " ".join(lines)
        await trio.sleep(60)

    return record(node, story)


def test_a_crash_loop_is_replayed(oom: Path) -> None:
    found = replay_recording(oom)
    found.check()
    assert found.notes == ()
    assert call_times(found, "create container web") == pytest.approx(
        [0.2, 1.4, 12.4, 33.5, 74.6], abs=0.2
    )
    assert "CrashLoopBackOff: it exited with code 137 (OOMKilled" in reasons(found)
    assert "until 2026-01-01T00:00:33" in reasons(found)


def test_another_back_off_is_found(oom: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = BackOffPolicy.next

    def slower(policy: BackOffPolicy, *given: Any) -> BackOffEntry:
        entry = before(policy, *given)
        return replace(entry, delay=entry.delay * 1.5)

    monkeypatch.setattr(BackOffPolicy, "next", slower)
    found = replay_recording(oom)
    with pytest.raises(ReplayDivergedError, match="default/web-node: recorded: the back-off ends"):
        found.check()
    assert found.divergence is not None
    assert found.divergence.at - found.began == pytest.approx(2.5, abs=0.5)


# A name that is held by dead remains


@pytest.fixture
def held_name(tmp_path: Path) -> Path:
    """A pod cannot be removed, and the next one of its name waits."""
    node = Node(tmp_path)
    node.runtime.latency = {"": 0.02}
    old, new = make_pod(image="web:1"), make_pod(image="web:2")
    error = RuntimeCallError("StopPodSandbox", "failed to stop sandbox: task must be stopped")

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(old)
        await trio.sleep(5)
        fault = node.runtime.faults.add(FaultKind.ERROR, "StopPodSandbox", times=None, error=error)
        node.feed.put(new)
        await trio.sleep(60)
        assert "is still on the node" in " ".join(screen(agent, new))
        node.runtime.faults.lift(fault)
        await trio.sleep(30)

    return record(node, story)


def test_a_name_that_is_held_is_replayed(held_name: Path) -> None:
    found = replay_recording(held_name)
    found.check()
    assert "a pod of the same name, UID" in reasons(found)
    stops = call_times(found, "stop the sandbox")
    assert stops[:5] == pytest.approx([5.1, 5.7, 6.7, 8.8, 12.8], abs=0.2)
    _, second = call_times(found, "run the sandbox")
    assert second == pytest.approx(stops[-1], abs=0.5)


def test_another_rhythm_of_attempts_is_found(
    held_name: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "RETRY_CAP", 60.0)
    found = replay_recording(held_name)
    assert found.divergence is not None
    assert found.divergence.recorded == "stop the sandbox"
    assert found.divergence.decided.startswith("nothing within")
    assert found.divergence.at - found.began == pytest.approx(31, abs=1)
    assert any("cannot be ended" in why for why in found.divergence.why)


# A volume that hangs


@pytest.fixture
def hung_volume(tmp_path: Path) -> Path:
    """An NFS server does not answer for two minutes."""
    node = Node(tmp_path)
    node.runtime.latency = {"": 0.02}
    node.mounter = mounter = HangingMounter()
    node.offload = mounter.offload
    pod = make_pod(
        spec=["volumes: [{name: data, nfs: {server: 192.0.2.9, path: /export}}]"],
        containers="- {name: web, image: web, volumeMounts: [{name: data, mountPath: /data}]}",
    )

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(120)
        assert "volume data: not set up yet" in " ".join(screen(agent, pod))
        assert node.runtime.calls_of("RunPodSandbox") == []
        mounter.well.set()
        await trio.sleep(20)

    return record(node, story)


def test_a_volume_that_hangs_is_replayed(hung_volume: Path) -> None:
    found = replay_recording(hung_volume)
    found.check()
    assert "volume data: not set up yet" in reasons(found)
    assert call_times(found, "run the sandbox") == pytest.approx([120], abs=1.1)


def test_a_sandbox_before_its_volumes_is_found(
    hung_volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubelet_trio.volumes import VolumeManager

    async def no_mount(self: VolumeManager, pod: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(VolumeManager, "mount", no_mount)
    found = replay_recording(hung_volume)
    assert found.divergence is not None
    assert found.divergence.decided == "run the sandbox"
    assert found.divergence.recorded.startswith("run the sandbox 12")
    assert found.divergence.at == pytest.approx(found.began, abs=1)
