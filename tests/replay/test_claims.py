"""Resource claims, replayed: the same devices are prepared for the same pods, and given back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.embed import KubeletConfig, open_kubelet
from kubelet_trio.managers.claims import manager
from kubelet_trio.managers.claims.allocation import AllocationError, allocate
from kubelet_trio.model import open_watcher
from kubelet_trio.recorder import (
    Entry,
    Kind,
    PodFilter,
    RecordingError,
    read_recording,
    read_ring,
    write_recording,
)
from kubelet_trio.replay import Replay, replay_recording
from kubelet_trio.testing import Behaviour, FakeRuntime
from kubelet_trio.testing.dra import DraFaultKind, FakeDeviceHealth, FakeDraDriver, calls
from kubelet_trio.testing.embedded import fake_world
from tests.agent.test_claims import bind, driver_of, eventually, health, plugged
from tests.agent.test_cluster import World
from tests.embed.test_claims import config, manifest, write_slice
from tests.harness.dra_services import run_dra_driver
from tests.replay.test_hostile import Entries, change_of

NAME = "dra.example.com"


@pytest.fixture
def world(short_path: Path) -> World:
    world = World(short_path)
    world.plugin_watcher = open_watcher
    world.host.runtime.latency = {"": 0.02}
    return world


def told(found: Replay, kind: str, text: str) -> list[str]:
    return [d.text for d in found.decisions if d.kind == kind and text in d.text]


def saved(world: World) -> Path:
    path = world.host.base / "claims.rec"
    write_recording(path, read_ring(world.host.base / "root"))
    return path


@pytest.fixture
def claimed(world: World) -> Path:
    """A pod waits for its driver, gets a device that gets too hot, and gives it back.

    Its container is started again after the agent.
    """
    driver = driver_of(world)

    async def main() -> None:
        async with world.running(recorder_size=4 << 20) as agent:
            await world.wait(world.is_node_ready)
            pod = bind(world, driver, request="one")
            await trio.sleep(5)
            slow = driver.faults.add(DraFaultKind.SLOW, calls.PREPARE, delay=4.0)
            async with plugged(world, driver):
                await world.wait(world.is_ready)
                driver.faults.lift(slow)
                await trio.sleep(5)
                driver.set_health(FakeDeviceHealth("dev-0", calls.UNHEALTHY, "token=abc too hot"))
                await eventually(lambda: "Unhealthy" in str(health(world)))
                await trio.sleep(5)
                agent.stop()
                await trio.sleep(5)
        assert pod.metadata is not None
        await trio.sleep(2)
        async with world.running(recorder_size=4 << 20) as agent:
            async with plugged(world, driver):
                await trio.sleep(10)
                (container,) = world.host.runtime.alive()
                world.host.runtime.kill(container.id, 1)
                await trio.sleep(10)
                world.kube.remove(Pod, "web", grace_period=5)
                await world.wait(world.gone)
                await trio.sleep(5)
                agent.stop()
                await trio.sleep(5)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert not driver.rules.prepared
    return saved(world)


def test_a_pod_gets_and_gives_back_the_devices_that_it_did(claimed: Path) -> None:
    found = replay_recording(claimed)
    found.check()
    assert found.notes == ()
    assert found.starts == 2
    assert set(told(found, "call", "ResourceClaim")) == {"ResourceClaim default/web-gpu"}
    assert told(found, "call", "Node") == [
        f"NodePrepareResources {NAME}: default/web-gpu",
        f"NodeUnprepareResources {NAME}: default/web-gpu",
    ]
    made = told(found, "call", "create container web")
    assert [text.partition(", CDI")[2] for text in made] == [" device dra.example.com/device=x"] * 2
    assert told(found, "status", "web has unhealthy devices: dra.example.com/device=x")
    here = [text.rpartition(f"{NAME} ")[2] for text in told(found, "node", "driver")]
    assert [text for text in here if text != "is not connected"][:3] == [
        "is there",
        "is gone",
        "is there",
    ]
    # It waited until the driver had registered, and then for its answer.
    ready = next(d for d in found.decisions if d.text == "Running; ready; web running")
    assert ready.at - found.began > 9


def test_no_secret_of_a_driver_is_recorded(claimed: Path) -> None:
    bodies = b"".join(entry.body for entry in read_recording(claimed))
    assert b"too hot" in bodies
    assert b"token=abc" not in bodies


def test_other_cdi_devices_are_found(claimed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        manager.ResourceClaims, "cdi_ids", lambda *_given: ("dra.example.com/device=y",)
    )
    found = replay_recording(claimed)
    assert found.divergence is not None
    assert found.divergence.pod == "default/web"
    assert found.divergence.recorded.endswith("CDI device dra.example.com/device=x")
    assert found.divergence.decided.endswith("CDI device dra.example.com/device=y")


def test_a_claim_that_is_not_given_back_any_more_is_found(
    claimed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(*_given: Any) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(manager.ResourceClaims, "unprepare", keep)
    found = replay_recording(claimed)
    assert found.divergence is not None
    assert found.divergence.recorded == f"NodeUnprepareResources {NAME}: default/web-gpu"
    assert found.divergence.pod == "default/web"


def test_a_claim_that_is_not_prepared_any_more_is_found(
    claimed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_given: Any) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(manager.ResourceClaims, "_finish_prepare", nothing)
    found = replay_recording(claimed)
    assert found.divergence is not None
    assert found.divergence.recorded == f"NodePrepareResources {NAME}: default/web-gpu"
    assert found.divergence.pod == "default/web"


@pytest.fixture
def local(short_path: Path) -> Path:
    """A node without an API server has two devices for two pods of a program."""
    runtime, root = FakeRuntime(status_lag=0.06), short_path / "root"
    runtime.latency = {"": 0.02}
    driver = FakeDraDriver()
    told: KubeletConfig = replace(config(root, runtime), flight_recorder_size=4 << 20)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(run_dra_driver, driver, root)
            async with open_kubelet(told, world=fake_world(runtime, told)) as kubelet:
                async with trio.open_nursery() as programs:
                    async with kubelet.run_pod(manifest("first")) as first:
                        await trio.sleep(10)
                        write_slice(driver, root)
                        await first.wait_ready()
                        programs.start_soon(second, kubelet)
                        await trio.sleep(20)
                    await trio.sleep(20)
            nursery.cancel_scope.cancel()

    async def second(kubelet: Any) -> None:
        async with kubelet.run_pod(manifest("second")) as running:
            await running.wait_ready()
            await trio.sleep(5)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    path = short_path / "local.rec"
    write_recording(path, read_ring(root))
    return path


def test_a_node_alone_allocates_as_it_did(local: Path) -> None:
    found = replay_recording(local)
    found.check()
    texts = told(found, "call", f"allocate {NAME}/node/dev-0")
    assert {text.partition(" to ")[2].rpartition("-")[0] for text in texts} == {
        "first-gpu",
        "second-gpu",
    }
    assert len(told(found, "call", "NodePrepareResources")) == 2
    assert len(told(found, "call", "NodeUnprepareResources")) == 2


def test_a_node_that_finds_no_devices_any_more_is_found(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubelet_trio.managers.claims.local import source

    def nothing(*_given: Any) -> Any:
        raise AllocationError("none")

    monkeypatch.setattr(source, "allocate", nothing)
    found = replay_recording(local)
    assert found.divergence is not None
    assert found.divergence.at - found.began == pytest.approx(10, abs=3)
    assert found.divergence.decided.endswith(("none", "nothing within 2.0 s"))


def test_a_node_that_allocates_another_device_is_found(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubelet_trio.managers.claims.local import source

    def other(*given: Any) -> Any:
        (result,) = allocate(*given)
        assert result.devices is not None
        results = [
            msgspec.structs.replace(device, device="dev-1")
            for device in result.devices.results or ()
        ]
        devices = msgspec.structs.replace(result.devices, results=results)
        return [msgspec.structs.replace(result, devices=devices)]

    monkeypatch.setattr(source, "allocate", other)
    found = replay_recording(local)
    assert found.divergence is not None
    assert found.divergence.recorded.startswith(f"allocate {NAME}/node/dev-0 to first-gpu")
    assert found.divergence.decided.startswith(f"allocate {NAME}/node/dev-1 to first-gpu")
    assert found.divergence.pod.startswith("default/first")


def test_a_recording_whose_beginning_was_overwritten(world: World) -> None:
    world.host.runtime = FakeRuntime(
        behave=lambda _c: Behaviour(exits_after=30.0, exit_code=1), status_lag=0.06
    )
    driver = driver_of(world)

    async def main() -> None:
        async with plugged(world, driver), world.running(recorder_size=96 * 1024) as agent:
            await world.wait(world.is_node_ready)
            bind(world, driver, request="one")
            await trio.sleep(1200)
            agent.stop()
            await trio.sleep(5)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    path = saved(world)
    assert b'"segment"' in next(read_recording(path)).body
    found = replay_recording(path)
    found.check()
    assert "CDI device dra" in told(found, "call", "create container web")[0]


def test_of_chosen_pods_claims_are_answered(claimed: Path) -> None:
    chosen = PodFilter([uid_of(claimed)]).filter(read_recording(claimed))
    path = claimed.with_name("chosen.rec")
    write_recording(path, chosen)
    found = replay_recording(path)
    found.check()
    assert told(found, "call", "NodePrepareResources")


def uid_of(path: Path) -> str:
    wanted = (e for e in read_recording(path) if e.kind is Kind.WANTED)
    return next(wanted).key.rpartition("/")[2]


CHANGED = (Kind.PLUGIN, Kind.ASKED, Kind.CHECKPOINT)
START = {"reason": "start", "wall": 1, "node": "n", "claims": "api"}
CLAIM = "ResourceClaim/default/c"
DRIVER = f"driver/{NAME}/0"
PREPARE = f"NodePrepareResources/{NAME}"


@pytest.mark.parametrize(
    ("kind", "key", "body", "says"),
    [
        (Kind.PLUGIN, "driver/../0", {}, "key: '..'"),
        (Kind.PLUGIN, DRIVER, {"connected": 7}, "connected"),
        (Kind.PLUGIN, DRIVER, {"devices": {"p/d": {"health": 7}}}, "health"),
        (Kind.ASKED, "ResourceClaim/../c", {"call": 1, "request": {}}, "key: '..'"),
        (Kind.ASKED, "ResourceClaim/default/..", {"call": 1, "request": {}}, "key: '..'"),
        (Kind.ASKED, CLAIM, {"call": 1, "ok": 7}, "ok"),
        (Kind.ASKED, CLAIM, {"call": 1, "ok": {"status": 7}}, "ok: .*status"),
        (Kind.ASKED, "NodePrepareResources/..", {"call": 1, "request": {}}, "key: '..'"),
        (Kind.ASKED, PREPARE, {"call": 1, "request": {"claims": 7}}, "request: .*claims"),
        (Kind.ASKED, PREPARE, {"call": 1, "ok": {"a": {"devices": [{}]}}}, "ok: .*pool"),
        (Kind.READ, "resource_slices:", {"ok": {"slices": [{"spec": 7}]}}, r"ok.slices\[0\]"),
        (Kind.READ, "resource_slices:", {"ok": {"slices": 7}}, "ok: .*slices"),
        (Kind.CHECKPOINT, "dra_manager_state", {"Data": "{}", "Checksum": 1}, "Data: .*corrupted"),
        (Kind.CHECKPOINT, "dra_manager_state", {}, "Data: not a checkpoint"),
        (Kind.CHECKPOINT, "resource_claims.json", {"claims": [{"spec": 7}]}, "claims: .*spec"),
    ],
)
def test_entries_of_another_form_are_refused_by_number_and_field(
    tmp_path: Path, kind: Kind, key: str, body: Any, says: str
) -> None:
    entries = [
        Entry(0, Kind.START, "", msgspec.json.encode(START)),
        Entry(0, Kind.SNAPSHOT, ""),
        Entry(1, kind, key, msgspec.json.encode(body)),
    ]
    path = tmp_path / "bad.rec"
    write_recording(path, entries)
    with pytest.raises(RecordingError, match=f"bad.rec: entry 3 .{kind.name} .*{says}"):
        replay_recording(path)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_changed_recording_is_refused_or_replayed(
    claimed: Path, local: Path, data: st.DataObject
) -> None:
    good = Entries(read_recording(data.draw(st.sampled_from([claimed, local]))))
    path = claimed.with_name("changed.rec")
    write_recording(path, change_of(good, CHANGED, data))
    with suppress(RecordingError):
        replay_recording(path, after=60)
