"""Resource claims of a whole agent: a driver registers, pods get its devices, agents restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Container, Pod, PodResourceClaim, PodSpec, ResourceRequirements
from lightkube.models.core_v1 import ResourceClaim as ContainerClaim
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceRequest,
    DeviceRequestAllocationResult,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceSlice,
)
from trio.testing import MockClock

from kubelet_trio.agent.device_info import device_info
from kubelet_trio.cri import v1
from kubelet_trio.managers import ManagerSettings
from kubelet_trio.model import open_watcher, pod_uid
from kubelet_trio.testing.dra import (
    DraFaultKind,
    FakeClaimDevice,
    FakeDeviceHealth,
    FakeDraDriver,
    calls,
    resource_slice,
)
from tests.agent.test_cluster import NAME, World
from tests.harness.dra_services import run_dra_driver

CDI = ("dra.example.com/device=x",)


@pytest.fixture
def world(short_path: Path) -> World:
    world = World(short_path)
    world.plugin_watcher = open_watcher
    return world


def driver_of(world: World) -> FakeDraDriver:
    return FakeDraDriver(
        choose=lambda _claim: (FakeClaimDevice("dev-0", requests=("one",), cdi_ids=CDI),),
        services=(calls.V1, calls.HEALTH_V1ALPHA1),
    )


@asynccontextmanager
async def plugged(world: World, driver: FakeDraDriver) -> AsyncIterator[None]:
    """Run a driver beside the agents of a node."""
    async with trio.open_nursery() as nursery:
        await nursery.start(run_dra_driver, driver, world.host.base / "root")
        yield
        nursery.cancel_scope.cancel()


async def eventually(is_so: Callable[[], object]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await trio.sleep(0.1)
    raise AssertionError("not within 100 s")


def bind(world: World, driver: FakeDraDriver, request: str = "", policy: str = "") -> Pod:
    """Make a pod with a claim, as the control plane leaves them."""
    container = Container(
        name="web",
        image="web",
        imagePullPolicy="IfNotPresent",
        resources=ResourceRequirements(claims=[ContainerClaim("gpu", request or None)]),
    )
    name = "web"
    body = PodSpec(
        restartPolicy=policy or None,
        containers=[container],
        nodeName=NAME,
        resourceClaims=[PodResourceClaim(name="gpu", resourceClaimName=f"{name}-gpu")],
    )
    pod = world.kube.add(Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=body))
    result = DeviceRequestAllocationResult("dev-0", driver.name, "node", "one")
    request_of = DeviceRequest("one", exactly=ExactDeviceRequest("gpu"))
    world.kube.add(
        ResourceClaim(
            metadata=ObjectMeta(name=f"{name}-gpu", namespace="default"),
            spec=ResourceClaimSpec(devices=DeviceClaim(requests=[request_of])),
        )
    )
    status = ResourceClaimStatus(
        allocation=AllocationResult(devices=DeviceAllocationResult(results=[result])),
        reservedFor=[ResourceClaimConsumerReference(name, "pods", pod_uid(pod))],
    )
    body_of = {"status": msgspec.to_builtins(status)}
    world.kube.change(ResourceClaim, f"{name}-gpu", body_of, subresource="status")
    return pod


def health(world: World) -> dict[str, tuple[str, str]]:
    status = next(iter(world.status().containerStatuses or ()))
    return {
        f"{found.name} {device.resourceID}": (device.health or "", device.message or "")
        for found in status.allocatedResourcesStatus or ()
        for device in found.resources or ()
    }


def events(world: World) -> list[tuple[str, str]]:
    assert world.agent is not None
    return [(e.reason or "", e.message or "") for e in world.agent.events.events(name="web")]


async def test_a_pod_gets_devices_before_its_sandbox_and_gives_them_back_before_its_end(
    world: World, autojump_clock: MockClock
) -> None:
    driver = driver_of(world)
    async with plugged(world, driver), world.running():
        await world.wait(world.is_node_ready)
        slow = driver.faults.add(DraFaultKind.HANG, calls.PREPARE)
        pod = bind(world, driver, request="one")
        await driver.wait_until(lambda rules: rules.log)
        await trio.sleep(3)
        assert not world.host.runtime.sandboxes
        driver.faults.lift(slow)
        await world.wait(world.is_ready)
        (container,) = world.host.runtime.alive(pod_uid(pod))
        assert container.config.CDI_devices == [v1.CdiDevice(name=CDI[0])]
        driver.set_health(FakeDeviceHealth("dev-0", calls.UNHEALTHY, "too hot"))
        shown = f"claim:gpu/one {CDI[0]}"
        await eventually(lambda: health(world) == {shown: ("Unhealthy", "too hot")})

        slow = driver.faults.add(DraFaultKind.HANG, calls.UNPREPARE)
        world.kube.remove(Pod, "web", grace_period=5)
        await driver.wait_until(lambda rules: rules.count(calls.UNPREPARE))
        await trio.sleep(3)
        # All of it has stopped, but others may not have its devices yet.
        assert not world.host.runtime.alive()
        assert not any(s.ready for s in world.host.runtime.sandboxes.values())
        assert world.status().phase == "Running"
        driver.faults.lift(slow)
        await world.wait(world.gone)
        assert not driver.rules.prepared
        driver.rules.check()
    assert world.host.runtime.violations == []


async def test_a_pod_that_ends_by_itself_has_given_back_when_its_phase_says_so(
    world: World, autojump_clock: MockClock
) -> None:
    driver = driver_of(world)
    async with plugged(world, driver), world.running():
        bind(world, driver, policy="Never")
        await world.wait(world.is_ready)
        slow = driver.faults.add(DraFaultKind.HANG, calls.UNPREPARE)
        (container,) = world.host.runtime.alive()
        world.host.runtime.kill(container.id, 0)
        await driver.wait_until(lambda rules: rules.count(calls.UNPREPARE))
        await trio.sleep(3)
        assert world.status().phase == "Running"
        driver.faults.lift(slow)
        await world.wait(lambda: world.status().phase == "Succeeded")
        assert not driver.rules.prepared


async def test_a_pod_waits_for_its_driver(world: World, autojump_clock: MockClock) -> None:
    driver = driver_of(world)
    async with world.running():
        bind(world, driver)
        text = f"prepare dynamic resources: DRA driver {driver.name} is not registered"
        expected = ("FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {text}")
        await eventually(lambda: expected in events(world))
        assert not world.host.runtime.sandboxes
        async with plugged(world, driver):
            await world.wait(world.is_ready)
    assert world.host.runtime.violations == []


async def test_the_next_agent_knows_what_containers_have(
    world: World, autojump_clock: MockClock
) -> None:
    driver = driver_of(world)
    async with plugged(world, driver):
        async with world.running():
            pod = bind(world, driver)
            await world.wait(world.is_ready)
        async with world.running() as agent:
            (container,) = world.host.runtime.alive()
            world.host.runtime.kill(container.id, 1)
            await eventually(
                lambda: [c for c in world.host.runtime.alive() if c.id != container.id]
            )
            (again,) = world.host.runtime.alive()
            assert again.config.CDI_devices == [v1.CdiDevice(name=CDI[0])]
            assert driver.rules.count(calls.PREPARE) == 1
            assert agent.parts.supplies.claims is not None
            (use,) = agent.parts.supplies.claims.uses(pod, "web")
            assert (use.name, use.devices[0].cdi_devices) == ("web-gpu", CDI)
            info = list(device_info(agent.parts))
            device, name = use.devices[0], "kubelet_trio_container_device_info"
            whose = (device.device, device.driver, device.pool, "web-gpu")
            assert info == [(name, ("default", "web", "web", "", *whose), 1)]
        # The pod goes while no agent runs.
        world.kube.remove(Pod, "web", grace_period=0)
        async with world.running():
            await eventually(lambda: not driver.rules.prepared)
        driver.rules.check()


async def test_without_the_gate_pods_with_claims_are_refused(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running(managers=ManagerSettings(claims=False)):
        bind(world, driver_of(world))
        await world.wait(lambda: world.status().phase == "Failed")
        assert world.status().reason == "PodFeatureUnsupported"
        assert "DynamicResourceAllocation is off" in (world.status().message or "")


async def test_slices_of_drivers_that_are_gone_are_removed(
    world: World, autojump_clock: MockClock
) -> None:
    driver = driver_of(world)
    world.kube.add(resource_slice(FakeDraDriver("other.example.com"), NAME))
    world.kube.add(resource_slice(FakeDraDriver("far.example.com"), "another"))
    far = "far.example.com"

    def drivers() -> set[str]:
        return {s.spec.driver for s in world.kube.all(ResourceSlice) if s.spec is not None}

    async with world.running():
        await eventually(lambda: drivers() == {far})
        async with plugged(world, driver):
            await eventually(lambda: driver.registrations)
            world.kube.add(resource_slice(driver, NAME))
            await trio.sleep(100)
            assert drivers() == {far, driver.name}
        await trio.sleep(25)
        assert drivers() == {far, driver.name}
        await eventually(lambda: drivers() == {far})


async def test_a_node_whose_pods_claim_nothing_loads_nothing(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running() as agent:
        world.bind()
        await world.wait(world.is_ready)
        assert agent.parts.supplies.claims is not None
        assert agent.parts.supplies.claims.manager is None
        assert not (world.host.base / "root" / "dra_manager_state").exists()
        page = await agent.metrics.page()
        assert 'dra_resource_claims_in_use{driver_name="<any>"} 0' in page
