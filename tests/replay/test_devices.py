"""Device plugins, replayed: who gets which devices, and what these put into containers."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubelet_trio.agent import Agent
from kubelet_trio.managers import DeviceOptions, ManagerSettings, asking_for, load_managers
from kubelet_trio.managers.devices import provider
from kubelet_trio.managers.devices.rules import DeviceRules as Rules
from kubelet_trio.managers.node import devices as node_devices
from kubelet_trio.model import open_watcher, pod_uid
from kubelet_trio.recorder import (
    Entry,
    Kind,
    PodFilter,
    RecordingError,
    read_recording,
    write_recording,
)
from kubelet_trio.replay import Replay, replay_recording
from kubelet_trio.testing import Behaviour, FakeRuntime
from kubelet_trio.testing.devices import (
    DeviceFaultKind,
    DeviceRules,
    calls,
)
from tests.agent.node import Node, make_pod
from tests.agent.test_device_plugins import (
    GPU,
    allocatable,
    eventually,
    failed,
    gpu_pod,
    plugged,
    plugin_of,
    up,
)
from tests.replay.recordings import record
from tests.replay.test_hostile import Entries, change_of
from tests.replay.test_restarts import record_lives

MODEL, OTHER = gpu_pod("model", command="[sh, $(GPUS)]"), gpu_pod("other")


@pytest.fixture
def node(short_path: Path) -> Node:
    node = Node(short_path)
    node.runtime.latency = {"": 0.02}
    node.plugin_watcher = open_watcher
    root = short_path / "root"
    node.managers = partial(load_managers, ManagerSettings(), root, device_plugins=True)
    return node


def told(found: Replay, kind: str, text: str) -> list[str]:
    return [d.text for d in found.decisions if d.kind == kind and text in d.text]


def digestless(text: str) -> str:
    """Return the text of a decision without the digests of variables, which are random."""
    return re.sub(r": [0-9a-f]{8}\)", ")", text)


@pytest.fixture
def served(node: Node) -> Path:
    """Two pods get a device each; the plugin prefers one, prepares them, and dies."""
    plugin = plugin_of(rules=DeviceRules(needs_pre_start=True, prefers=True))

    async def story(node: Node, agent: Agent) -> None:
        async with plugged(node, plugin):
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            node.feed.put(MODEL)
            await eventually(lambda: up(node, MODEL))
            await trio.sleep(5)
            plugin.set_health("a", is_healthy=False)
            await trio.sleep(5)
            node.feed.put(MODEL, OTHER)
            await eventually(lambda: up(node, OTHER))
            await trio.sleep(5)
        await eventually(lambda: allocatable(agent) == {GPU: 0})
        await trio.sleep(10)
        (container,) = node.runtime.alive(pod_uid(MODEL))
        node.runtime.kill(container.id)
        await trio.sleep(10)
        async with plugged(node, plugin):
            await eventually(lambda: allocatable(agent) == {GPU: 1})
            await trio.sleep(40)
            assert up(node, MODEL)

    return record(node, story)


def test_pods_get_the_devices_that_they_got(served: Path) -> None:
    found = replay_recording(served)
    found.check()
    assert found.notes == ()
    asked = [(d.pod, d.text) for d in found.decisions if d.text.startswith("Allocate")]
    assert asked == [
        ("default/model-node", f"Allocate {GPU} for container web: a"),
        ("default/other-node", f"Allocate {GPU} for container web: b"),
    ]
    assert told(found, "call", "GetPreferredAllocation")[0].endswith("container web: a, b, 1")
    assert told(found, "call", "PreStartContainer")[:2] == [
        f"PreStartContainer {GPU} for container web: a",
        f"PreStartContainer {GPU} for container web: b",
    ]
    first = told(found, "call", "create container web, attempt 0")[0]
    assert digestless(first).endswith(
        "CDI device example.com/gpu=a, device /dev/gpu (/dev/zero rw), "
        "mount /usr/lib/gpu (/opt/gpu, read only), annotation gpu=yes, "
        "variables GPUS (as for a) MODE (as for a, b)"
    )
    assert told(found, "status", "web has unhealthy devices: a")
    # It dies, the container cannot start, and it comes back.
    assert told(found, "node", "plugin")[:3] == [
        f"the plugin of {GPU} is there",
        f"the plugin of {GPU} is gone",
        f"the plugin of {GPU} is there",
    ]
    assert told(found, "why", "has been stopped")


def test_no_value_of_a_variable_is_recorded(served: Path) -> None:
    entries = list(read_recording(served))
    answers = [e.body for e in entries if e.kind in (Kind.ASKED, Kind.CHECKPOINT)]
    assert any(b'"GPUS":"*left out* ' in body for body in answers)
    bodies = b"".join(entry.body for entry in entries)
    assert b'"plugin"' not in bodies  # the value of MODE
    assert b64encode(b"plugin") not in bodies


@pytest.fixture
def chosen_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device is chosen than the plugin prefers."""
    choose = Rules.choose

    def otherwise(
        self: Rules, state: Any, pod: Any, container: Any, resource: str, *wish: Any
    ) -> Any:
        return choose(self, state, pod, container, resource, *([{"b"}] if wish else ()))

    monkeypatch.setattr(Rules, "choose", otherwise)


def test_other_devices_are_found(served: Path, chosen_otherwise: None) -> None:
    found = replay_recording(served)
    assert found.divergence is not None
    assert found.divergence.pod == "default/model-node"
    assert found.divergence.recorded == f"Allocate {GPU} for container web: a"
    assert found.divergence.decided == f"Allocate {GPU} for container web: b"
    assert str(found.divergence).startswith(f"default/model-node: recorded: Allocate {GPU} for")


def test_a_container_that_is_not_prepared_any_more_is_found(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_given: Any) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(node_devices.DeviceManagers, "_pre_start", nothing)
    found = replay_recording(served)
    assert found.divergence is not None
    assert found.divergence.pod == "default/model-node"
    assert found.divergence.recorded == f"PreStartContainer {GPU} for container web: a"
    assert found.divergence.decided == "nothing within 2.0 s"


def test_a_question_for_another_pod_is_found(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = partial(asking_for, pod_uid(OTHER))
    monkeypatch.setattr(node_devices, "asking_for", lambda _uid, container: other(container))
    found = replay_recording(served)
    assert found.divergence is not None
    assert found.divergence.pod == "default/model-node"
    assert found.divergence.recorded.endswith("container web: a, b, 1, for default/model-node")
    assert found.divergence.decided.endswith("container web: a, b, 1, for default/other-node")


def test_values_of_another_device_are_found(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pod gets the variables of the first: the names are the same."""
    given, first = provider.DeviceProvider.share, list[Mapping[str, str]]()

    def mixed(self: provider.DeviceProvider, *arguments: Any) -> Any:
        share = given(self, *arguments)
        if share.devices is None:
            return share
        first.append(share.devices.env)
        return replace(share, devices=replace(share.devices, env=first[0]))

    monkeypatch.setattr(provider.DeviceProvider, "share", mixed)
    found = replay_recording(served)
    assert found.divergence is not None
    assert found.divergence.pod == "default/other-node"
    recorded, decided = map(digestless, (found.divergence.recorded, found.divergence.decided))
    assert "variables GPUS (as for b) MODE" in recorded
    assert decided == recorded.replace("GPUS (as for b)", "GPUS (as for a)")


def test_a_value_of_the_container_s_own(node: Node) -> None:
    """It takes precedence, and is no plugin's, whatever the manifest says that is left out."""
    plugin = plugin_of()
    limits = f"resources: {{limits: {{{GPU}: 1}}}}"
    env = "env: [{name: MODE, value: own}]"
    pod = make_pod(containers=f"- {{name: web, image: web, {env}, {limits}}}")

    async def story(node: Node, agent: Agent) -> None:
        async with plugged(node, plugin):
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            node.feed.put(pod)
            await eventually(lambda: up(node, pod))
            await trio.sleep(5)

    found = replay_recording(record(node, story))
    found.check()
    (made,) = told(found, "call", "create container web")
    assert digestless(made).endswith("variables GPUS (as for a) MODE (not from a plugin)")


@pytest.fixture
def older(served: Path) -> Path:
    """The same of an older agent: no digests, and not for whom a plugin was asked."""
    path = served.with_name("older.rec")
    write_recording(path, map(as_older, read_recording(served)))
    return path


def test_a_recording_of_an_older_agent(older: Path) -> None:
    found = replay_recording(older)
    found.check()
    created = told(found, "call", "create container web, attempt 0")[0]
    assert created.endswith("variables GPUS MODE")


def test_other_devices_than_an_older_agent_s_are_found(older: Path, chosen_otherwise: None) -> None:
    found = replay_recording(older)
    assert found.divergence is not None
    # Who asks now is known.
    assert found.divergence.pod == "default/model-node"
    assert found.divergence.recorded == f"Allocate {GPU} for container web: a"
    assert found.divergence.decided == f"Allocate {GPU} for container web: b"


def as_older(entry: Entry) -> Entry:
    if entry.kind not in (Kind.ASKED, Kind.CHECKPOINT, Kind.CALL) or not entry.body:
        return entry
    body = re.sub(rb"(\*left out\*) [0-9a-f]{8}", rb"\1", entry.body)
    read = msgspec.json.decode(body)
    for name in ("pod", "container"):
        read.pop(name, None) if entry.kind is Kind.ASKED else None
    config = read.get("request", {}).get("config", {}) if entry.kind is Kind.CALL else {}
    for variable in config.get("envs", ()):
        variable["value"] = b64encode(b"*left out*").decode()
    return replace(entry, body=msgspec.json.encode(read))


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("env", "variables GPUS"),
        ("annotations", "annotation gpu=yes"),
        ("devices", "device /dev/gpu (/dev/zero rw)"),
        ("mounts", "mount /usr/lib/gpu (/opt/gpu, read only)"),
        ("cdi", "CDI device example.com/gpu=a"),
    ],
)
def test_what_a_container_does_not_get_any_more_is_found(
    served: Path, monkeypatch: pytest.MonkeyPatch, lost: str, says: str
) -> None:
    given = provider.DeviceProvider.share

    def without(self: provider.DeviceProvider, *arguments: Any) -> Any:
        share = given(self, *arguments)
        if share.devices is None:
            return share
        nothing: Mapping[str, Any] = {lost: getattr(DeviceOptions(), lost)}
        return replace(share, devices=replace(share.devices, **nothing))

    monkeypatch.setattr(provider.DeviceProvider, "share", without)
    found = replay_recording(served)
    assert found.divergence is not None
    assert found.divergence.pod == "default/model-node"
    assert says in found.divergence.recorded
    assert says not in found.divergence.decided


def test_a_plugin_that_fails_or_hangs_does_so_again(node: Node) -> None:
    plugin, slow, refused = plugin_of(), gpu_pod("slow"), gpu_pod("refused")

    async def story(node: Node, agent: Agent) -> None:
        async with plugged(node, plugin):
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            plugin.faults.add(DeviceFaultKind.SLOW, calls.ALLOCATE, delay=9.0)
            node.feed.put(slow)
            await eventually(lambda: up(node, slow))
            plugin.faults.add(DeviceFaultKind.REFUSE, calls.ALLOCATE, message="out of order")
            node.feed.put(slow, refused)
            await eventually(lambda: failed(node, refused))
            await trio.sleep(10)

    found = replay_recording(record(node, story))
    found.check()
    assert "out of order" in told(found, "answer", "failed")[0]
    assert told(found, "status", "Failed (UnexpectedAdmissionError)")
    times = {d.text: d.at for d in found.decisions if d.pod == "default/slow-node"}
    created = next(at for text, at in times.items() if text.startswith("create container"))
    assert created - times["wanted"] == pytest.approx(9, abs=1)


def test_the_next_agent_knows_who_has_what(node: Node) -> None:
    plugin = plugin_of()

    async def first(agent: Agent) -> None:
        node.feed.put()
        async with plugged(node, plugin):
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            node.feed.put(MODEL)
            await eventually(lambda: up(node, MODEL))
            await trio.sleep(5)

    async def second(agent: Agent) -> None:
        node.feed.put(MODEL)
        await trio.sleep(5)
        assert allocatable(agent) == {GPU: 0}
        async with plugged(node, plugin):
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            (container,) = node.runtime.alive(pod_uid(MODEL))
            node.runtime.kill(container.id)
            await trio.sleep(10)
            node.feed.put(MODEL, OTHER)
            await eventually(lambda: up(node, OTHER))
            await trio.sleep(10)

    found = replay_recording(record_lives(node, [first, second], between=3))
    found.check()
    assert found.starts == 2
    asked = [text.rpartition(": ")[2] for text in told(found, "call", "Allocate")]
    assert asked == ["a", "b"]
    # The second agent has the plugin's answer from the checkpoint.
    (again,) = told(found, "call", "create container web, attempt 1")
    assert "variables GPUS (as for a) MODE (as for a, b)" in digestless(again)


def test_a_recording_whose_beginning_was_overwritten(node: Node) -> None:
    """What the plugin offers, and what it answered before, is in each segment."""
    node.runtime = FakeRuntime(
        behave=lambda _c: Behaviour(exits_after=30.0, exit_code=1), status_lag=0.06
    )
    plugin = plugin_of("a", "b", "c", rules=DeviceRules(needs_pre_start=True))

    async def story(node: Node, agent: Agent) -> None:
        async with plugged(node, plugin):
            await eventually(lambda: allocatable(agent) == {GPU: 3})
            node.feed.put(MODEL)
            for number in range(8):
                await trio.sleep(150)
                plugin.set_health("c", is_healthy=bool(number % 2))

    path = record(node, story, size=96 * 1024)
    assert b'"segment"' in next(read_recording(path)).body
    found = replay_recording(path)
    found.check()
    assert "in the middle of an agent's life" in found.notes[0]
    created = told(found, "call", "create container web")[0]
    assert "variables GPUS (as for a) MODE (as for a)" in digestless(created)
    assert told(found, "call", "PreStartContainer")


def test_of_chosen_pods_devices_are_not_replayed(served: Path) -> None:
    chosen = PodFilter([pod_uid(OTHER)]).filter(read_recording(served))
    path = served.with_name("chosen.rec")
    write_recording(path, chosen)
    found = replay_recording(path)
    found.check()
    assert found.notes == (
        "other pods are left out: managers of CPUs, memory and devices are not replayed",
    )


START = {"reason": "start", "wall": 1, "node": "n", "device_plugins": True}
HELD = {"PodUID": "u", "ContainerName": "web", "ResourceName": GPU}
FILE = "device-plugins/kubelet_internal_checkpoint"


def held(**changed: Any) -> dict[str, Any]:
    return {"Data": {"PodDeviceEntries": [{**HELD, **changed}]}}


def call(config: dict[str, Any]) -> dict[str, Any]:
    return {"call": 1, "request": {"pod_sandbox_id": "s", "config": config}}


@pytest.mark.parametrize(
    ("kind", "key", "body", "says"),
    [
        (Kind.PLUGIN, "device/../1", {}, "key: '..' is no name of a resource"),
        (Kind.PLUGIN, f"device/{GPU}/x", {}, "key: .* names no plugin"),
        (Kind.PLUGIN, f"other/{GPU}/1", {}, "key: .* names no plugin"),
        (Kind.PLUGIN, f"device/{GPU}/1", {"devices": {"a": {"health": 7}}}, "health"),
        (Kind.PLUGIN, f"device/{GPU}/1", {"devices": {"a": {}}}, "health"),
        (
            Kind.PLUGIN,
            f"device/{GPU}/1",
            {"devices": {"a": {"health": "Healthy", "nodes": ["x"]}}},
            "nodes",
        ),
        (Kind.PLUGIN, f"device/{GPU}/1", {"gone": 7}, "gone"),
        (Kind.PLUGIN, f"device/{GPU}/1", [], "object"),
        (Kind.ASKED, "Reset/x", {"call": 1, "request": {}}, "key: 'Reset' is no question"),
        (Kind.ASKED, "Allocate/..", {"call": 1, "request": {}}, "key: '..'"),
        (Kind.ASKED, f"Allocate/{GPU}", {"request": {"ids": []}}, "call"),
        (Kind.ASKED, f"Allocate/{GPU}", {"call": 1, "request": {"ids": 7}}, "request: .*ids"),
        (Kind.ASKED, f"Allocate/{GPU}", {"call": 1, "request": {}, "pod": "../u"}, "pod: '../u'"),
        (Kind.ASKED, f"Allocate/{GPU}", {"call": 1, "request": {}, "container": "W"}, "container"),
        (Kind.CALL, "create_container", call({"envs": [{"key": "A", "value": "?"}]}), "value"),
        (Kind.CALL, "create_container", call({"annotations": {"a": 7}}), "annotations"),
        (Kind.ASKED, f"Allocate/{GPU}", {"call": 1, "ok": {"envs": []}}, "ok: .*envs"),
        (Kind.ASKED, f"Allocate/{GPU}", {"call": 1, "ok": {"mounts": [{}]}}, "ok: .*path"),
        (Kind.ASKED, f"GetPreferredAllocation/{GPU}", {"call": 1, "ok": 7}, "ok"),
        (Kind.CHECKPOINT, "", {}, "key: '' is no checkpoint"),
        (Kind.CHECKPOINT, "..", {}, "key: '..' is no checkpoint"),
        (Kind.CHECKPOINT, FILE, held(PodUID="../u"), "PodDeviceEntries.0..PodUID"),
        (Kind.CHECKPOINT, FILE, held(ContainerName="../u"), "ContainerName"),
        (Kind.CHECKPOINT, FILE, held(ResourceName="../u"), "ResourceName"),
        (Kind.CHECKPOINT, FILE, held(DeviceIDs={"x": []}), "DeviceIDs"),
        (Kind.CHECKPOINT, FILE, held(AllocResp={"devices": [7]}), "AllocResp.devices"),
        (Kind.CHECKPOINT, FILE, {"Data": {"RegisteredDevices": {"..": []}}}, "Registered"),
        (Kind.CHECKPOINT, FILE, {"Data": {"RegisteredDevices": {GPU: [7]}}}, "Registered"),
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
def test_a_changed_recording_is_refused_or_replayed(served: Path, data: st.DataObject) -> None:
    good = Entries(read_recording(served))
    path = served.with_name("changed.rec")
    write_recording(path, change_of(good, (Kind.PLUGIN, Kind.ASKED, Kind.CHECKPOINT), data))
    with suppress(RecordingError):
        replay_recording(path, after=60)
