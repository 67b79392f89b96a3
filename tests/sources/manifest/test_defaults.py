from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod, PodSpec

from kubelet_trio.kube import to_json
from kubelet_trio.sources import default_pod
from kubelet_trio.sources.manifest.defaults import pull_policy
from tests.sources.make import container, manifest


def defaulted(**spec: Any) -> PodSpec:
    pod = default_pod(msgspec.convert(manifest(**spec), Pod))
    assert pod.spec is not None
    return pod.spec


def defaulted_container(**fields: Any) -> Container:
    return defaulted(containers=[container(**fields)]).containers[0]


def test_a_bare_spec_gets_the_api_servers_defaults() -> None:
    spec = defaulted()
    assert spec.restartPolicy == "Always"
    assert spec.dnsPolicy == "ClusterFirst"
    assert spec.terminationGracePeriodSeconds == 30
    assert spec.enableServiceLinks is True
    assert spec.schedulerName == "default-scheduler"
    assert msgspec.to_builtins(spec.securityContext) == {}
    only = spec.containers[0]
    assert only.terminationMessagePath == "/dev/termination-log"
    assert only.terminationMessagePolicy == "File"
    assert msgspec.to_builtins(only.resources) == {}


def test_what_is_set_stays() -> None:
    spec = defaulted(
        restartPolicy="Never",
        dnsPolicy="Default",
        terminationGracePeriodSeconds=0,
        enableServiceLinks=False,
        containers=[container(imagePullPolicy="Never", terminationMessagePath="/x")],
    )
    assert spec.restartPolicy == "Never"
    assert spec.dnsPolicy == "Default"
    assert spec.terminationGracePeriodSeconds == 0
    assert spec.enableServiceLinks is False
    assert spec.containers[0].imagePullPolicy == "Never"
    assert spec.containers[0].terminationMessagePath == "/x"


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("host:5000/busybox", "Always"),
        ("host:5000/a/busybox:1", "IfNotPresent"),
        ("busybox@sha256:00", "IfNotPresent"),
        ("busybox:latest@sha256:00", "Always"),  # the tag decides, also beside a digest
        ("busybox:1@sha256:00", "IfNotPresent"),
    ],
)
def test_the_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    assert pull_policy(image) == policy
    assert defaulted_container(image=image).imagePullPolicy == policy


def test_ports_are_tcp_and_on_the_host_network_the_hosts() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP", "hostPort": 5353}]
    spec = defaulted(containers=[container(ports=ports)])
    assert [(p.protocol, p.hostPort) for p in spec.containers[0].ports or ()] == [
        ("TCP", None),
        ("UDP", 5353),
    ]
    spec = defaulted(
        hostNetwork=True,
        containers=[container(ports=[{"containerPort": 80}])],
        initContainers=[container("i", ports=[{"containerPort": 81}])],
    )
    assert (spec.containers[0].ports or [])[0].hostPort == 80
    assert ((spec.initContainers or [])[0].ports or [])[0].hostPort == 81


def test_requests_default_to_limits_one_by_one() -> None:
    only = defaulted_container(
        resources={"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    )
    assert only.resources is not None
    assert only.resources.requests == {"cpu": "1", "memory": "1Gi"}


def test_a_pods_requests_default_to_its_containers_then_to_its_limits() -> None:
    main = {"name": "a", "resources": {"requests": {"cpu": "0.5"}}}
    own = {"limits": {"cpu": "2", "memory": "1Gi"}}
    made = defaulted(containers=[main, {**main, "name": "b"}], resources=own).resources
    assert made is not None
    assert made.limits == {"cpu": "2", "memory": "1Gi"}
    assert made.requests == {"cpu": "1", "memory": "1Gi"}
    assert defaulted(resources={}) == defaulted(resources=defaulted(resources={}).resources)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        # without limits no request is set
        ({"requests": {"cpu": "2"}}, {"requests": {"cpu": "2"}}),
        ({}, {}),
        (
            {"limits": {"cpu": "2"}},
            {"limits": {"cpu": "2"}, "requests": {"cpu": "1", "memory": "64Mi"}},
        ),
        # what a pod cannot have is left to validation
        (
            {"limits": {"cpu": "2", "disk": "1"}, "requests": {"memory": "1Gi"}},
            {"limits": {"cpu": "2", "disk": "1"}, "requests": {"cpu": "1", "memory": "1Gi"}},
        ),
    ],
)
def test_a_pods_requests_are_set_where_it_has_limits(
    own: dict[str, Any], expected: dict[str, Any]
) -> None:
    requests = {"cpu": "1000m", "memory": "64Mi", "ephemeral-storage": "1Gi"}
    spec = defaulted(containers=[container(resources={"requests": requests})], resources=own)
    assert to_json(spec.resources) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (
            {"requests": {"cpu": "2"}},
            {
                "limits": {"hugepages-2Mi": "4Mi"},
                "requests": {"cpu": "2", "hugepages-2Mi": "4Mi", "memory": "64Mi"},
            },
        ),
        (
            {"requests": {"hugepages-2Mi": "8Mi"}},
            {"requests": {"hugepages-2Mi": "8Mi"}},
        ),
        (
            {"limits": {"hugepages-2Mi": "8Mi"}, "requests": {"cpu": "2"}},
            {
                "limits": {"hugepages-2Mi": "8Mi"},
                "requests": {"cpu": "2", "hugepages-2Mi": "8Mi", "memory": "64Mi"},
            },
        ),
    ],
)
def test_a_pods_huge_pages_default_to_its_containers(
    own: dict[str, Any], expected: dict[str, Any]
) -> None:
    limits = {"hugepages-2Mi": "4Mi", "memory": "64Mi"}
    spec = defaulted(containers=[container(resources={"limits": limits})], resources=own)
    assert to_json(spec.resources) == expected


def test_a_limit_of_a_container_counts_as_its_request_in_the_pods() -> None:
    limited = container(resources={"limits": {"cpu": "1", "memory": "64Mi"}})
    spec = defaulted(containers=[limited], resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    assert spec.resources is not None
    assert spec.resources.requests == {"cpu": "1", "memory": "64Mi"}


def test_a_resize_policy_has_no_default() -> None:
    assert defaulted_container(resources={"limits": {"cpu": "1"}}).resizePolicy is None


def test_quantities_get_their_canonical_spelling_and_bad_ones_stay() -> None:
    only = defaulted_container(resources={"requests": {"cpu": "1000m", "memory": "x"}})
    assert only.resources is not None
    assert only.resources.requests == {"cpu": "1", "memory": "x"}


def test_a_volume_without_a_source_is_an_empty_dir_and_a_host_path_is_unchecked() -> None:
    spec = defaulted(volumes=[{"name": "a"}, {"name": "b", "hostPath": {"path": "/x"}}])
    first, second = spec.volumes or []
    assert first.emptyDir is not None
    assert second.hostPath is not None
    assert second.hostPath.type == ""


def test_probes_and_hooks_find_their_defaults_here() -> None:
    only = defaulted_container(
        livenessProbe={"httpGet": {"port": 80}},
        readinessProbe={"exec": {}, "periodSeconds": 3},
        lifecycle={"preStop": {"httpGet": {"port": 80}}},
    )
    live, ready = only.livenessProbe, only.readinessProbe
    assert live is not None
    assert live.httpGet is not None
    assert (live.httpGet.path, live.httpGet.scheme) == ("/", "HTTP")
    assert (live.timeoutSeconds, live.periodSeconds) == (1, 10)
    assert (live.successThreshold, live.failureThreshold) == (1, 3)
    assert ready is not None
    assert ready.periodSeconds == 3
    assert only.lifecycle is not None
    assert only.lifecycle.preStop is not None
    assert only.lifecycle.preStop.httpGet is not None
    assert only.lifecycle.preStop.httpGet.path == "/"


texts = st.sampled_from(["", "a", "b:1", "c:latest", "Always"])
optional_text = st.none() | texts
amounts = st.none() | st.dictionaries(
    st.sampled_from(["cpu", "memory", "hugepages-2Mi"]),
    st.sampled_from(["1", "1000m", "1.5Gi", "x", ""]),
)
ports = st.lists(
    st.fixed_dictionaries({"containerPort": st.integers(0, 3), "hostPort": st.none() | st.just(2)}),
    max_size=2,
)
containers = st.fixed_dictionaries(
    {
        "name": texts,
        "image": optional_text,
        "imagePullPolicy": optional_text,
        "terminationMessagePath": optional_text,
        "ports": st.none() | ports,
        "resources": st.none() | st.fixed_dictionaries({"limits": amounts, "requests": amounts}),
        "livenessProbe": st.none() | st.just({"httpGet": {"port": 1}, "periodSeconds": 5}),
    }
)
volumes = st.sampled_from(
    [{"name": "a"}, {"name": "b", "hostPath": {"path": "/"}}, {"name": "c", "secret": {}}]
)
specs = st.fixed_dictionaries(
    {
        "containers": st.lists(containers, max_size=2),
        "initContainers": st.none() | st.lists(containers, max_size=2),
        "volumes": st.none() | st.lists(volumes, max_size=3),
        "hostNetwork": st.none() | st.booleans(),
        "resources": st.none() | st.fixed_dictionaries({"limits": amounts, "requests": amounts}),
        "restartPolicy": optional_text,
        "terminationGracePeriodSeconds": st.none() | st.integers(0, 5),
    }
)


@given(specs)
def test_defaulting_twice_is_defaulting_once_and_changes_nothing_it_is_given(
    spec: dict[str, Any],
) -> None:
    pod = msgspec.convert({"metadata": {"name": "x"}, "spec": spec}, Pod)
    before = msgspec.json.encode(pod)
    once = default_pod(pod)
    assert default_pod(once) == once
    assert msgspec.json.encode(pod) == before
    assert msgspec.convert(msgspec.to_builtins(once), Pod) == once
