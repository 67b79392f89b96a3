"""Device plugins with real device nodes: on our gRPC server and on grpcio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.testing.devices import DeviceFaultKind, FakeDevice, calls
from tests.containerd.devices import MakePlugin, device_pod, given, needs, pid_of, plugins
from tests.harness import (
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)
from tests.harness.api_node import ApiNode
from tests.harness.cri import CONTAINER_NAME, POD_NAME
from tests.harness.device_plugin import ANNOTATION, MOUNTED, node_in_container
from tests.harness.devices import harmless_device


@pytest.fixture(params=[False, True], ids=["ours", "grpcio"])
def make_plugin(
    node: ApiNode, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[MakePlugin]:
    with plugins(tmp_path, node.base / "root", request.param) as make:
        yield make


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Tell the variants of a test apart, in names of resources and pods."""
    return "peer" if "grpcio" in request.node.name else "ours"


def is_rejected(pod: Json) -> bool:
    return bool(pod["status"].get("phase") == "Failed")


def why_rejected(node: ApiNode, name: str) -> tuple[str, str]:
    status = node.wait(name, is_rejected, what="rejected")["status"]
    return status["reason"], status["message"]


def assert_both_are_free(node: ApiNode, cri: CriClient, resource: str) -> None:
    name = f"{resource.rpartition('/')[2]}-next"
    with node.running(device_pod(name, resource, 2)):
        assert given(cri, name) == ["a", "b"]


def health(pod: Json, resource: str) -> dict[str, str]:
    """Return the health of a container's devices, as its status shows it."""
    shown = container_status(pod, "main").get("allocatedResourcesStatus") or []
    entries = [entry for entry in shown if entry["name"] == resource]
    return {one["resourceID"]: one["health"] for entry in entries for one in entry["resources"]}


def test_a_container_gets_its_device_with_all_that_belongs_to_it(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/whole-{kind}", f"whole-{kind}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        with node.running(device_pod(name, resource)) as shown:
            (device,) = given(cri, name)
            assert plugin.calls(calls.ALLOCATE) == [[device]]
            assert health(shown, resource) == {device: "Healthy"}
            live = live_containers(cri, name)["main"]
            path = node_in_container(device)
            assert cri.run(live, "stat", "-c", "%F %t:%T", path) == "character special file 1:3\n"
            assert cri.run(live, "cat", f"{MOUNTED}/firmware") == "of the plugin"
            with pytest.raises(RuntimeError, match="Read-only file system"):
                cri.run(live, "touch", f"{MOUNTED}/file")
            assert cri.container_status(live).annotations[ANNOTATION] == device
        plugin.give_back()
        assert_both_are_free(node, cri, resource)


def test_only_who_was_given_a_device_may_open_it(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    if (number := harmless_device()) is None:
        pytest.skip("no device here that is harmless to open")
    resource, name = f"example.org/opened-{kind}", f"opened-{kind}"
    major, minor = number >> 8, number & 0xFF
    with make_plugin(resource, devices=("a",), numbers={"a": number}) as plugin:
        node.wait_amounts(resource, "1", "1")
        body = pod(
            name,
            container("main", forever(), resources=needs(resource)),
            container("other", forever()),
        )
        with node.running(body):
            live = live_containers(cri, name)
            cri.run(live["main"], "sh", "-c", f": < {node_in_container('a')}")
            cri.run(live["other"], "mknod", "/node", "c", str(major), str(minor))
            with pytest.raises(RuntimeError, match="Operation not permitted"):
                cri.run(live["other"], "sh", "-c", ": < /node")
        assert plugin.calls(calls.ALLOCATE) == [["a"]]


def test_a_pod_that_needs_more_than_is_left_is_rejected(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/scarce-{kind}", f"scarce-{kind}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        with node.running(device_pod(name, resource, 2)):
            node.create(device_pod(f"{name}-late", resource))
            reason, message = why_rejected(node, f"{name}-late")
            assert reason in ("UnexpectedAdmissionError", f"OutOf{resource}")
            assert resource in message
            node.delete(f"{name}-late")
            assert given(cri, name) == ["a", "b"]
        plugin.give_back()
        assert_both_are_free(node, cri, resource)


def test_a_plugins_preference_is_followed_and_each_start_is_prepared(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/choosy-{kind}", f"choosy-{kind}"
    fields = {"devices": ("a", "b", "c"), "prefers": True, "needs_pre_start": True}
    with make_plugin(resource, **fields) as plugin:
        node.wait_amounts(resource, "3", "3")
        with node.running(device_pod(name, resource)):
            assert given(cri, name) == ["c"]
            assert plugin.calls(calls.PRE_START) == [["c"]]
            cri.kill(live_containers(cri, name)["main"])
            node.wait(name, restarted_once, what="restarted")
            assert given(cri, name) == ["c"]
            assert plugin.calls(calls.PRE_START) == [["c"], ["c"]]
            assert plugin.calls(calls.ALLOCATE) == [["c"]]


def restarted_once(pod: Json) -> bool:
    return is_ready(pod) and container_status(pod, "main")["restartCount"] == 1


def test_a_device_that_falls_ill_is_shown_and_given_to_nobody(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/ill-{kind}", f"ill-{kind}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        with node.running(device_pod(name, resource)):
            (device,) = given(cri, name)
            (free,) = {"a", "b"} - {device}
            pid = pid_of(cri, name)
            plugin.list_now(FakeDevice(device, is_healthy=False), free)
            node.wait(name, lambda p: health(p, resource) == {device: "Unhealthy"})
            node.wait_amounts(resource, "2", "1")
            with node.running(device_pod(f"{name}-well", resource)):
                assert given(cri, f"{name}-well") == [free]
            plugin.list_now(device, free)
            shown = node.wait(name, lambda p: health(p, resource) == {device: "Healthy"})
            node.wait_amounts(resource, "2", "2")
            assert container_status(shown, "main")["restartCount"] == 0
            assert pid_of(cri, name) == pid


def test_containers_keep_their_devices_while_the_plugin_is_replaced(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/replaced-{kind}", f"replaced-{kind}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        with node.running(device_pod(name, resource)):
            (device,), pid = given(cri, name), pid_of(cri, name)
            plugin.kill()
            node.wait_amounts(resource, "2", "0")
            node.create(device_pod(f"{name}-early", resource))
            reason, _ = why_rejected(node, f"{name}-early")
            assert reason in ("UnexpectedAdmissionError", f"OutOf{resource}")
            node.delete(f"{name}-early")
            plugin.list_first(["a", "b", "c"])
            plugin.start()
            node.wait_amounts(resource, "3", "3")
            assert (given(cri, name), pid_of(cri, name)) == ([device], pid)
            with node.running(device_pod(f"{name}-others", resource, 2)):
                assert device not in given(cri, f"{name}-others")
            # The same device again, for the same container, without being asked for again.
            cri.kill(live_containers(cri, name)["main"])
            node.wait(name, restarted_once, what="restarted")
            assert given(cri, name) == [device]
            assert [device] not in plugin.calls(calls.ALLOCATE)


def test_a_second_registration_changes_nothing_for_containers(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/twice-{kind}", f"twice-{kind}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        with node.running(device_pod(name, resource)):
            (device,), pid = given(cri, name), pid_of(cri, name)
            for times in (2, 3):
                plugin.register_again()
                plugin.wait_registered(times)
            plugin.list_now("a", "b", "c")
            node.wait_amounts(resource, "3", "3")
            assert (given(cri, name), pid_of(cri, name)) == ([device], pid)
            with node.running(device_pod(f"{name}-others", resource, 2)):
                assert device not in given(cri, f"{name}-others")


@pytest.mark.parametrize("fault", [DeviceFaultKind.DIE_BEFORE, DeviceFaultKind.DIE_AFTER])
def test_a_plugin_that_dies_in_allocate_costs_the_pod_and_no_device(
    node: ApiNode,
    cri: CriClient,
    make_plugin: MakePlugin,
    kind: str,
    fault: DeviceFaultKind,
) -> None:
    name = f"dies-{fault.name.lower().replace('_', '-')}-{kind}"
    resource = f"example.org/{name}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        plugin.fault(fault, calls.ALLOCATE)
        node.create(device_pod(name, resource))
        reason, message = why_rejected(node, name)
        assert reason == "UnexpectedAdmissionError"
        assert "rpc error" in message or resource in message
        plugin.wait_dead()
        node.wait_amounts(resource, "2", "0")
        plugin.start()
        plugin.give_back()
        node.wait_amounts(resource, "2", "2")
        assert_both_are_free(node, cri, resource)
        node.delete(name)


def test_a_plugin_that_hangs_holds_up_its_own_pods_alone(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    slow, quick = f"example.org/slow-{kind}", f"example.org/quick-{kind}"
    with make_plugin(slow) as hanging, make_plugin(quick):
        node.wait_amounts(slow, "2", "2")
        node.wait_amounts(quick, "2", "2")
        hanging.fault(DeviceFaultKind.HANG, calls.ALLOCATE, times=None)
        node.create(device_pod(f"slow-{kind}", slow))
        hanging.wait_called(calls.ALLOCATE)
        with node.running(device_pod(f"quick-{kind}", quick)), node.running(pod(f"plain-{kind}")):
            assert len(given(cri, f"quick-{kind}")) == 1
        assert "main" not in live_containers(cri, f"slow-{kind}")
        hanging.clear_faults()
        node.wait(f"slow-{kind}", is_ready, what="Ready")
        node.delete(f"slow-{kind}")


def test_a_pod_whose_plugin_hangs_can_be_deleted(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/given-up-{kind}", f"given-up-{kind}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        plugin.fault(DeviceFaultKind.HANG, calls.ALLOCATE, times=None)
        node.create(device_pod(name, resource, 2))
        plugin.wait_called(calls.ALLOCATE)
        node.delete(name)
        plugin.clear_faults()
        plugin.give_back()
        assert_both_are_free(node, cri, resource)


@pytest.mark.parametrize("fault", [DeviceFaultKind.NO_ANSWERS, DeviceFaultKind.HUGE])
def test_an_answer_that_cannot_be_right_costs_the_pod_and_no_device(
    node: ApiNode,
    cri: CriClient,
    make_plugin: MakePlugin,
    kind: str,
    fault: DeviceFaultKind,
) -> None:
    name = f"lies-{fault.name.lower().replace('_', '-')}-{kind}"
    resource = f"example.org/{name}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        plugin.fault(fault, calls.ALLOCATE)
        node.create(device_pod(name, resource, 2))
        reason, _ = why_rejected(node, name)
        assert reason == "UnexpectedAdmissionError"
        plugin.give_back()
        assert_both_are_free(node, cri, resource)
        node.delete(name)


def test_a_plugin_that_ends_its_list_is_out_until_it_registers_again(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/ended-{kind}", f"ended-{kind}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        plugin.end_streams()
        node.wait_amounts(resource, "2", "0")
        plugin.register_again()
        node.wait_amounts(resource, "2", "2")
        with node.running(device_pod(name, resource)):
            assert len(given(cri, name)) == 1


def test_init_containers_hand_their_devices_on(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/first-{kind}", f"first-{kind}"
    body = device_pod(
        name, resource, 2, initContainers=[container("init", "true", resources=needs(resource, 2))]
    )
    with make_plugin(resource, is_exclusive=False):
        node.wait_amounts(resource, "2", "2")
        with node.running(body):
            assert given(cri, name) == ["a", "b"]


def test_a_plugin_is_found_in_the_registry(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/found-{kind}", f"found-{kind}"
    with make_plugin(resource, in_registry=True) as plugin:
        plugin.wait_registered()
        node.wait_amounts(resource, "2", "2")
        with node.running(device_pod(name, resource)):
            assert len(given(cri, name)) == 1


def test_a_node_whose_agent_died_keeps_what_containers_have(
    node: ApiNode, cri: CriClient, make_plugin: MakePlugin, kind: str
) -> None:
    resource, name = f"example.org/kept-{kind}", f"kept-{kind}"
    with make_plugin(resource) as plugin:
        node.wait_amounts(resource, "2", "2")
        with node.running(device_pod(name, resource)):
            (device,), pid = given(cri, name), pid_of(cri, name)
            node.kill()
            node.start()
            plugin.wait_registered(2)
            plugin.list_now("a", "b", "c")
            node.wait_amounts(resource, "3", "3")  # so the new agent has the plugin's list
            assert (given(cri, name), pid_of(cri, name)) == ([device], pid)
            with node.running(device_pod(f"{name}-other", resource)):
                assert device not in given(cri, f"{name}-other")
            eventually(lambda: len(plugin.calls(calls.ALLOCATE)) == 2)
            created = [c for c in cri.containers() if c.labels[POD_NAME] == name]
            assert [c.labels[CONTAINER_NAME] for c in created] == ["main"]
