"""What containers hold becomes the messages of upstream."""

from __future__ import annotations

import pytest

from kubelet_trio.managers.podresources import (
    NOTHING,
    ClaimDevice,
    ClaimUse,
    DeviceUse,
    ResourceUse,
)
from kubelet_trio.managers.podresources.generated import v1, v1alpha1
from kubelet_trio.managers.podresources.messages import (
    allocatable_use,
    alpha_pod_use,
    container_use,
    main_containers,
    pod_use,
    shown_containers,
)
from tests.managers.podresources.view import FULL, GIB, pod_named


def nodes(*numbers: int) -> v1.TopologyInfo:
    return v1.TopologyInfo(nodes=[v1.NumaNode(id=number) for number in numbers])


DEVICES = [
    v1.ContainerDevices(resource_name="example.com/disk", device_ids=["d0"]),
    v1.ContainerDevices(resource_name="example.com/net", device_ids=["n1"], topology=nodes(1)),
    # A device near to two nodes is listed once for each.
    v1.ContainerDevices(resource_name="example.com/net", device_ids=["n7"], topology=nodes(0)),
    v1.ContainerDevices(resource_name="example.com/net", device_ids=["n7"], topology=nodes(1)),
]
MEMORY = [
    v1.ContainerMemory(memory_type="memory", size=GIB, topology=nodes(0)),
    v1.ContainerMemory(memory_type="hugepages-1Gi", size=2 * GIB, topology=nodes(0, 1)),
]
CLAIM = ClaimUse(
    "gpus", "ns", (ClaimDevice("gpu.example.com", "pool", "gpu-0", ("example.com/gpu=0",), "s"),)
)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (NOTHING, v1.ContainerResources(name="c")),
        (
            FULL,
            v1.ContainerResources(name="c", devices=DEVICES, cpu_ids=[2, 3, 10], memory=MEMORY),
        ),
        (
            ResourceUse(claims=(CLAIM, ClaimUse("none", "ns"))),
            v1.ContainerResources(
                name="c",
                dynamic_resources=[
                    v1.DynamicResource(
                        claim_name="gpus",
                        claim_namespace="ns",
                        claim_resources=[
                            v1.ClaimResource(
                                cdi_devices=[v1.CdiDevice(name="example.com/gpu=0")],
                                driver_name="gpu.example.com",
                                pool_name="pool",
                                device_name="gpu-0",
                                share_id="s",
                            )
                        ],
                    ),
                    v1.DynamicResource(claim_name="none", claim_namespace="ns"),
                ],
            ),
        ),
        (
            ResourceUse(devices=(DeviceUse("a.b/c", "x", ()),)),
            v1.ContainerResources(
                name="c", devices=[v1.ContainerDevices(resource_name="a.b/c", device_ids=["x"])]
            ),
        ),
    ],
)
def test_a_container_shows_what_it_holds(use: ResourceUse, expected: v1.ContainerResources) -> None:
    assert container_use("c", use) == expected


def test_a_node_shows_what_it_may_hand_out() -> None:
    expected = v1.AllocatableResourcesResponse(devices=DEVICES, cpu_ids=[2, 3, 10], memory=MEMORY)
    assert allocatable_use(FULL) == expected
    assert bytes(allocatable_use(NOTHING)) == b""


def test_v1_shows_sidecars_and_main_containers_in_their_order() -> None:
    pod = pod_named("web")
    assert list(shown_containers(pod)) == ["sidecar", "main", "other"]
    message = pod_use(pod, (("sidecar", NOTHING), ("main", FULL)))
    assert (message.name, message.namespace) == ("web", "ns")
    assert message.containers == [container_use("sidecar", NOTHING), container_use("main", FULL)]


def test_v1alpha1_shows_the_devices_of_main_containers() -> None:
    pod = pod_named("web")
    assert list(main_containers(pod)) == ["main", "other"]
    devices = [
        v1alpha1.ContainerDevices(resource_name=d.resource_name, device_ids=d.device_ids)
        for d in DEVICES
    ]
    assert alpha_pod_use(pod, (("main", FULL),)) == v1alpha1.PodResources(
        name="web",
        namespace="ns",
        containers=[v1alpha1.ContainerResources(name="main", devices=devices)],
    )
