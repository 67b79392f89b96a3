"""What resizes of pods the fake API server refuses, and in which words."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.kube import KubeError, from_json
from tests.testing.resizing import (
    BURSTABLE,
    CPU,
    GUARANTEED,
    ONLY,
    QOS,
    TPU,
    Json,
    container,
    of,
    of_init,
    pod,
    refusal,
    resize,
    server_with,
    sidecar,
    stored,
)


@pytest.mark.parametrize(
    ("body", "patch", "problem"),
    [
        (
            pod(container(resources=BURSTABLE), mirror=True),
            of(limits={"cpu": "1"}),
            "[]: Forbidden: static pods cannot be resized",
        ),
        (
            pod(container(resources=BURSTABLE), os={"name": "windows"}),
            of(limits={"cpu": "1"}),
            "[]: Forbidden: windows pods cannot be resized",
        ),
        # QoS
        (
            pod(container(resources=GUARANTEED)),
            of(requests={"cpu": "500m"}),
            f'spec: Invalid value: "Guaranteed": {QOS}',
        ),
        (
            pod(container(resources=BURSTABLE)),
            of(requests=BURSTABLE["limits"]),
            f'spec: Invalid value: "Burstable": {QOS}',
        ),
        (
            pod(container()),
            of(requests={"memory": "1Mi"}),
            f'spec: Invalid value: "BestEffort": {QOS}',
        ),
        (
            pod(container(resources=BURSTABLE), nodeName="n1"),
            {"resources": {**GUARANTEED, "requests": GUARANTEED["limits"]}},
            f'spec: Invalid value: "Burstable": {QOS}',
        ),
        (
            pod(container(), resources={}),
            {"resources": {"requests": {"cpu": "1"}}},
            f'spec: Invalid value: "BestEffort": {QOS}',
        ),
        # removed
        (
            pod(container(resources={"requests": {"cpu": "1", "memory": "1Mi"}})),
            of(requests={"cpu": None}),
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
        ),
        (
            pod(container(resources=BURSTABLE)),
            of(limits={"cpu": None}),
            "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (
            pod(container(), init=sidecar()),
            of_init(limits={"memory": None}),
            "spec.initContainers[0].resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (
            pod(container(resources={"requests": {"cpu": "1", TPU: "1"}, "limits": {TPU: "1"}})),
            of(limits={TPU: None}, requests={TPU: None}),
            "[spec.containers[0].resources.requests: Forbidden: resource requests cannot be "
            "removed, spec.containers[0].resources.limits: Forbidden: resource limits cannot be "
            f"removed, spec: Forbidden: {ONLY} are mutable]",
        ),
        (
            pod(container(resources=BURSTABLE), resources={"limits": {"cpu": "1"}}),
            {"resources": None},
            "spec.resources: Forbidden: pod-level resources cannot be removed",
        ),
        (
            pod(container(resources=BURSTABLE), resources=GUARANTEED),
            {"resources": {"limits": {"cpu": None}}},
            "spec.resources.limits: Forbidden: pod-level resource limits cannot be removed",
        ),
        (
            pod(container(), resources={"requests": {"cpu": "1", "memory": "1Gi"}}),
            {"resources": {"requests": {"cpu": None}}},
            "spec.resources.requests: Forbidden: pod-level resource requests cannot be removed",
        ),
        # other resources
        (
            pod(container(resources=BURSTABLE)),
            of(limits={"ephemeral-storage": "1Gi"}),
            f"spec: Forbidden: {ONLY} are mutable",
        ),
        (
            pod(container(), init=sidecar()),
            of_init(requests={"ephemeral-storage": "1Gi"}),
            f"spec.initContainers[0]: Forbidden: {ONLY} for init or sidecar containers are mutable",
        ),
        (
            pod(container(resources=BURSTABLE), resources={"requests": {"cpu": "1"}}),
            {"resources": {"limits": {"hugepages-2Mi": "2Mi"}}},
            f"spec: Forbidden: {ONLY} are mutable at pod-level",
        ),
        (
            pod(container()),
            {"resources": {}},
            f"spec: Forbidden: {ONLY} are mutable",
        ),
        (
            pod(
                container(resources={**BURSTABLE, "claims": [{"name": "gpu"}]}),
                resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}],
            ),
            of(limits={"cpu": "1"}),
            f"spec: Forbidden: {ONLY} are mutable",
        ),
        # resize policies
        (
            pod(container(resources=BURSTABLE)),
            {"containers": [{"name": "c", "resizePolicy": [
                {"resourceName": "cpu", "restartPolicy": "NotRequired"}]}]},
            f"spec: Forbidden: {ONLY} are mutable",
        ),
        (
            pod(container(), init=sidecar()),
            {"initContainers": [{"name": "i", "resizePolicy": [
                {"resourceName": "cpu", "restartPolicy": "NotRequired"}]}]},
            f"spec.initContainers[0]: Forbidden: {ONLY} for init or sidecar containers are mutable",
        ),
        (
            pod(container(), init=[container("i", BURSTABLE, resizePolicy=[
                {"resourceName": "cpu", "restartPolicy": "RestartContainer"}])]),
            of_init(limits={"cpu": "1"}),
            "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy "
            "of RestartContainer cannot be resized",
        ),
        # containers
        (
            pod(container()),
            {"containers": [{"name": "new", "image": "i"}]},
            "spec.containers: Forbidden: containers may not be added or removed on resize",
        ),
        (
            pod(container(), init=sidecar()),
            {"initContainers": [{"$patch": "delete", "name": "i"}]},
            f'[spec: Invalid value: "Burstable": {QOS}, '
            "spec.initContainers: Forbidden: initContainers may not be added or removed on resize]",
        ),
        # what no pod may have
        (
            pod(container(resources=BURSTABLE)),
            of(requests={"cpu": "300m"}),
            'spec.containers[0].resources.requests: Invalid value: "300m": must be less than or '
            "equal to cpu limit of 200m",
        ),
        (
            pod(container(resources={"requests": {"cpu": "1", "memory": "1Gi"}})),
            of(requests={"cpu": "-1"}),
            'spec.containers[0].resources.requests[cpu]: Invalid value: "-1": must be greater '
            "than or equal to 0",
        ),
        (
            pod(container(resources=BURSTABLE)),
            of(limits={TPU: "1"}, requests={TPU: "2"}),
            '[spec.containers[0].resources.requests: Invalid value: "2": must be equal to '
            f"{TPU} limit of 1, spec: Forbidden: {ONLY} are mutable]",
        ),
        (
            pod(container(resources=BURSTABLE)),
            of(requests={TPU: "2"}),
            "[spec.containers[0].resources.limits: Required value: Limit must be set for non "
            f"overcommitable resources, spec: Forbidden: {ONLY} are mutable]",
        ),
        (
            pod(container(resources=BURSTABLE)),
            of(requests={"disk": "2"}),
            '[spec.containers[0].resources.requests[disk]: Invalid value: "disk": must be a '
            "standard resource type or fully qualified, "
            'spec.containers[0].resources.requests[disk]: Invalid value: "disk": must be a '
            f"standard resource for containers, spec: Forbidden: {ONLY} are mutable]",
        ),
        (
            pod(container(resources=BURSTABLE), resources={"requests": {"cpu": "1"}}),
            {"resources": {"requests": {"ephemeral-storage": "1Gi"}}},
            '[spec.resources.requests[ephemeral-storage]: Unsupported value: "ephemeral-storage": '
            'supported values: "cpu", "hugepages-", "memory", '
            f"spec: Forbidden: {ONLY} are mutable at pod-level]",
        ),
        (
            pod(container(resources=BURSTABLE), resources={"requests": {"cpu": "1"}}),
            {"resources": {"requests": {"cpu": "50m"}}},
            'spec.resources.requests[cpu]: Invalid value: "50m": must be greater than or equal to '
            "aggregate container requests of 100m",
        ),
        (
            pod(container(resources=BURSTABLE), resources={"limits": {"cpu": "1"}}),
            of(limits={"cpu": "2"}),
            'spec.resources.containers[0][cpu].limits: Invalid value: "2": must be less than or '
            "equal to pod limits of 1",
        ),
    ],
)  # fmt: skip
def test_what_a_real_server_refuses_is_refused(body: Json, patch: Json, problem: str) -> None:
    assert refusal(server_with(body), patch) == problem


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (
            ["b", "a"],
            "[spec.containers[0].name: Forbidden: containers may not be renamed or reordered on "
            "resize, spec.containers[1].name: Forbidden: containers may not be renamed or "
            "reordered on resize]",
        ),
        (
            ["a", "x"],
            "spec.containers[1].name: Forbidden: containers may not be renamed or reordered on "
            "resize",
        ),
        (["a"], "spec.containers: Forbidden: containers may not be added or removed on resize"),
    ],
)
async def test_containers_keep_names_and_order(
    names: list[str], problem: str, autojump_clock: MockClock
) -> None:
    kube = server_with(pod(container("a"), container("b")))
    body = stored(kube)
    body["spec"]["containers"] = [container(name) for name in names]
    with pytest.raises(KubeError) as refused:
        await kube.update(from_json(body, Pod), subresource="resize")
    assert refused.value.message == f'Pod "web" is invalid: {problem}'


@pytest.mark.parametrize(
    ("quantity", "problem"),
    [
        ("", "quantities must match the regular expression"),
        ("1..5", "quantities must match the regular expression"),
        ("1x", "quantities must match the regular expression"),
        ("1MM", "unable to parse quantity's suffix"),
    ],
)
def test_what_is_no_quantity_is_refused(quantity: str, problem: str) -> None:
    kube = server_with(pod(container(resources=BURSTABLE)))
    before = stored(kube)
    with pytest.raises(KubeError, match=problem):
        resize(kube, of(limits={"cpu": quantity}))
    assert stored(kube) == before


def test_resources_change_by_the_subresource_alone() -> None:
    kube = server_with(pod(container(resources=BURSTABLE)))
    with pytest.raises(KubeError, match="pod updates may not change fields other than") as refused:
        kube.change(Pod, "web", {"spec": CPU})
    assert refused.value.code == 422
    kube.change(Pod, "web", {"spec": CPU}, subresource="status")
    assert stored(kube)["spec"]["containers"][0]["resources"] == BURSTABLE


@pytest.mark.parametrize("reported", [None, {}, BURSTABLE])
def test_a_node_that_reports_no_resources_cannot_resize(reported: Json | None) -> None:
    kube = server_with(pod(container(resources=BURSTABLE)))
    status = {"name": "c", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
    state = {"running": {"startedAt": "2026-11-22T10:00:00Z"}}
    statuses = [{**status, "state": state, "resources": reported}]
    kube.change(Pod, "web", {"status": {"containerStatuses": statuses}}, subresource="status")
    if reported is None:
        text = "spec: Forbidden: Pod running on node without support for resize"
        assert refusal(kube, CPU) == text
    else:
        resize(kube, CPU)


def test_a_pod_that_uses_claims_for_its_cpu_cannot_be_resized() -> None:
    kube = server_with(pod(container(resources=BURSTABLE)))
    claims = [{"resourceClaimName": "x", "containers": ["c"], "resources": {"cpu": "1"}}]
    status = {"status": {"nodeAllocatableResourceClaimStatuses": claims}}
    kube.change(Pod, "web", status, subresource="status")
    text = "spec: Forbidden: pods with node allocatable resource claims cannot be resized"
    assert refusal(kube, CPU) == text


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_the_phase_does_not_matter(phase: str) -> None:
    kube = server_with(pod(container(resources=BURSTABLE)))
    kube.change(Pod, "web", {"status": {"phase": phase}}, subresource="status")
    assert resize(kube, CPU)["containers"][0]["resources"]["limits"]["cpu"] == "1"
