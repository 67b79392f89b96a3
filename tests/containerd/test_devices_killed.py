"""Devices of static pods while the daemon is killed with SIGKILL, with and without its plugin."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kubelet_trio.testing.devices import DeviceFaultKind, calls
from tests.containerd.devices import MakePlugin, device_pod, given, pid_of, plugins
from tests.harness import (
    Agent,
    CriClient,
    Json,
    container_status,
    eventually,
    is_ready,
    live_containers,
)
from tests.harness.devices import DevicePlugin
from tests.harness.go_checkpoints import DEVICE_FILE, read_checkpoint
from tests.harness.pods import NODE


@pytest.fixture(params=[False, True], ids=["ours", "grpcio"])
def make_plugin(
    agent: Agent, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[MakePlugin]:
    with plugins(tmp_path, agent.root, request.param) as make:
        yield make


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return "peer" if "grpcio" in request.node.name else "ours"


def held(agent: Agent, resource: str) -> list[str]:
    """Return the devices of a resource that containers have, by the checkpoint."""
    entries = read_checkpoint(agent.root, DEVICE_FILE)["PodDeviceEntries"] or []
    by_node = (entry["DeviceIDs"] for entry in entries if entry["ResourceName"] == resource)
    return sorted(device for ids in by_node for devices in ids.values() for device in devices)


def wait_known(agent: Agent, plugin: DevicePlugin, registrations: int = 1) -> None:
    """Wait until the agent has a list of this life of the plugin.

    The API server would be told; here the checkpoint has what is registered. A list of its own
    tells it from what an earlier agent has written.
    """
    plugin.wait_registered(registrations)
    for listed in (["a", "b", "mark"], ["a", "b"]):
        plugin.list_now(*listed)
        eventually(partial(is_known, agent, plugin, listed), what=f"{listed} of {plugin.resource}")


def is_known(agent: Agent, plugin: DevicePlugin, listed: list[str]) -> bool:
    if not (agent.root / DEVICE_FILE).exists():
        return False
    registered = read_checkpoint(agent.root, DEVICE_FILE)["RegisteredDevices"] or {}
    return sorted(registered.get(plugin.resource) or []) == listed


def end(agent: Agent, *names: str) -> None:
    for name in names:
        agent.drop(name)
    for name in names:
        agent.wait_gone(name)


def is_decided(pod: Json) -> bool:
    return is_ready(pod) or pod["status"].get("phase") == "Failed"


def was_restarted(pod: Json) -> bool:
    return is_ready(pod) and container_status(pod, "main")["restartCount"] > 0


def test_a_killed_agent_costs_no_container_its_device(
    agent: Agent, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/kept-{kind}", f"kept-{kind}"
    with make_plugin(resource) as plugin:
        wait_known(agent, plugin)
        agent.put(device_pod(name, resource))
        agent.wait_ready(name)
        (device,), pid = given(cri, f"{name}-{NODE}"), pid_of(cri, f"{name}-{NODE}")
        assert held(agent, resource) == [device]

        agent.kill()
        agent.start()
        wait_known(agent, plugin, 2)
        agent.put(device_pod(f"{name}-other", resource))
        agent.wait_ready(f"{name}-other")
        assert given(cri, f"{name}-other-{NODE}") != [device]
        assert (given(cri, f"{name}-{NODE}"), pid_of(cri, f"{name}-{NODE}")) == ([device], pid)
        assert held(agent, resource) == ["a", "b"]
        assert len(plugin.calls(calls.ALLOCATE)) == 2
        # A new process of the container has the same device, by the checkpoint.
        cri.kill(live_containers(cri, f"{name}-{NODE}")["main"])
        agent.wait(name, was_restarted, what="restarted")
        assert given(cri, f"{name}-{NODE}") == [device]
        assert len(plugin.calls(calls.ALLOCATE)) == 2
        end(agent, name, f"{name}-other")
        plugin.give_back()
        agent.put(device_pod(f"{name}-all", resource, 2))
        agent.wait_ready(f"{name}-all")
        assert held(agent, resource) == ["a", "b"]
        end(agent, f"{name}-all")


def test_agent_and_plugin_killed_together_cost_nobody_a_device(
    agent: Agent, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/both-{kind}", f"both-{kind}"
    with make_plugin(resource) as plugin:
        wait_known(agent, plugin)
        agent.put(device_pod(name, resource))
        agent.wait_ready(name)
        (device,), pid = given(cri, f"{name}-{NODE}"), pid_of(cri, f"{name}-{NODE}")
        agent.kill()
        plugin.kill()
        agent.start()
        agent.wait_ready(name)  # its plugin is not back
        assert (given(cri, f"{name}-{NODE}"), pid_of(cri, f"{name}-{NODE}")) == ([device], pid)
        plugin.start()
        wait_known(agent, plugin)
        agent.put(device_pod(f"{name}-other", resource))
        agent.wait_ready(f"{name}-other")
        assert given(cri, f"{name}-other-{NODE}") != [device]
        shown = agent.wait_ready(name)
        assert container_status(shown, "main")["restartCount"] == 0
        assert pid_of(cri, f"{name}-{NODE}") == pid
        end(agent, name, f"{name}-other")


@pytest.mark.parametrize("fault", [DeviceFaultKind.HANG, DeviceFaultKind.DIE_AFTER])
def test_an_agent_killed_in_allocate_begins_anew(
    agent: Agent,
    cri: CriClient,
    make_plugin: MakePlugin,
    kind: str,
    fault: DeviceFaultKind,
) -> None:
    name = f"cut-{fault.name.lower().replace('_', '-')}-{kind}"
    resource = f"example.org/{name}"
    # What the plugin did for the call that was cut, it does again.
    with make_plugin(resource, is_exclusive=False) as plugin:
        wait_known(agent, plugin)
        plugin.fault(fault, calls.ALLOCATE, times=None)
        agent.put(device_pod(name, resource, 2))
        if fault is DeviceFaultKind.HANG:
            plugin.wait_called(calls.ALLOCATE)
            agent.kill()
            plugin.clear_faults()
        else:
            plugin.wait_dead()
            agent.kill()
            plugin.start()
        agent.start()
        wait_known(agent, plugin, 2 if fault is DeviceFaultKind.HANG else 1)
        # A static pod that was rejected stays so; its file is put again as a person would.
        agent.wait(name, is_decided, what="ready or rejected")
        end(agent, name)
        agent.put(device_pod(f"{name}-next", resource, 2))
        agent.wait_ready(f"{name}-next")
        assert given(cri, f"{name}-next-{NODE}") == ["a", "b"]
        end(agent, f"{name}-next")
