from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import Pod

from kubelet_trio.sources.manifest.schema import check_pod
from tests.sources.make import container, manifest


def found(raw: dict[str, Any]) -> list[str]:
    return [f"{error.field}: {error.message}" for error in check_pod(raw)[1]]


def pod(spec: dict[str, Any], meta: dict[str, Any] | None = None) -> dict[str, Any]:
    raw = manifest()
    return {
        **raw,
        "metadata": {**raw["metadata"], **(meta or {})},
        "spec": {**raw["spec"], **spec},
    }


def of_container(**fields: Any) -> dict[str, Any]:
    return pod({"containers": [container(**fields)]})


C = "spec.containers[0]"
WHOLE = "expected a whole number"
QUOTE = "expected a string; put it in quotes"
TIME = "expected a time such as 2006-01-02T15:04:05Z"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (pod({"hostNetwrk": True}), 'spec.hostNetwrk: unknown field; did you mean "hostNetwork"?'),
        (
            pod({}, {"restartPolicy": "Never"}),
            "metadata.restartPolicy: unknown field; restartPolicy belongs under spec",
        ),
        (
            of_container(hostPort=80),
            f"{C}.hostPort: unknown field; hostPort belongs under spec.containers[].ports[]",
        ),
        (
            pod({"labels": {}}),
            "spec.labels: unknown field; labels belongs under metadata",
        ),
        (
            pod({"initContainers": [container(hostNetwork=True)]}),
            "spec.initContainers[0].hostNetwork: unknown field; hostNetwork belongs under spec",
        ),
        ({**manifest(), "frobnicate": 1}, "frobnicate: unknown field"),
        (
            of_container(ports=[{"containerPort": "80"}]),
            f'{C}.ports[0].containerPort: Invalid value: "80": {WHOLE}',
        ),
        (
            of_container(ports=[{"containerPort": 8.5}]),
            f"{C}.ports[0].containerPort: Invalid value: 8.5: {WHOLE}",
        ),
        (
            of_container(ports=[{"containerPort": True}]),
            f"{C}.ports[0].containerPort: Invalid value: true: {WHOLE}",
        ),
        (
            of_container(ports=[{"containerPort": 2**63}]),
            f"{C}.ports[0].containerPort: Invalid value: {2**63}: {WHOLE}",
        ),
        (of_container(ports={}), f"{C}.ports: Invalid value: an object: expected a list"),
        (of_container(ports=[None]), f"{C}.ports[0]: Invalid value: null: expected an object"),
        (of_container(ports=[{}]), f"{C}.ports[0].containerPort: Required value"),
        (of_container(args=["a", 5]), f"{C}.args[1]: Invalid value: 5: {QUOTE}"),
        (
            of_container(env=[{"name": "a", "value": True}]),
            f"{C}.env[0].value: Invalid value: true: {QUOTE}",
        ),
        (of_container(image=["x"]), f"{C}.image: Invalid value: a list: expected a string"),
        (of_container(tty="yes"), f'{C}.tty: Invalid value: "yes": expected true or false'),
        (
            of_container(resources={"limits": {"cpu": True}}),
            f"{C}.resources.limits[cpu]: Invalid value: true: {QUOTE}",
        ),
        (pod({}, {"labels": {"a": 1}}), f"metadata.labels[a]: Invalid value: 1: {QUOTE}"),
        (pod({}, {"labels": []}), "metadata.labels: Invalid value: a list: expected an object"),
        (
            pod({}, {"creationTimestamp": "today"}),
            f'metadata.creationTimestamp: Invalid value: "today": {TIME}',
        ),
        (pod({"containers": [{"image": "x"}]}), f"{C}.name: Required value"),
        ({**manifest(), "spec": {}}, "spec.containers: Required value"),
        ({**manifest(), "spec": 5}, "spec: Invalid value: 5: expected an object"),
        (
            of_container(image="\ud800"),
            f"{C}.image: Invalid value: \"'\\\\ud800'\": expected valid Unicode",
        ),
        (
            pod({}, {"labels": {"\ud800": "a"}}),
            "metadata.labels: Invalid value: \"'\\\\ud800'\": expected valid Unicode",
        ),
        (
            of_container(livenessProbe={"tcpSocket": {"port": "\ud800"}}),
            f"{C}.livenessProbe.tcpSocket.port: Invalid value: "
            "\"'\\\\ud800'\": expected valid Unicode",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(raw: dict[str, Any], expected: str) -> None:
    assert found(raw) == [expected]


def test_every_error_is_found_in_one_pass() -> None:
    raw = pod({"a": 1, "containers": [container(b=1), container(c=1, tty=5)]}, {"d": 1})
    assert [line.partition(":")[0] for line in found(raw)] == [
        "metadata.d",
        "spec.containers[0].b",
        "spec.containers[1].c",
        "spec.containers[1].tty",
        "spec.a",
    ]


def test_null_means_not_set() -> None:
    raw = pod({"volumes": None}, {"creationTimestamp": None, "labels": {"a": None, "b": "c"}})
    document, errors = check_pod(raw)
    assert not errors
    assert "volumes" not in document["spec"]
    assert document["metadata"] == {"name": "web", "labels": {"b": "c"}}


def test_quantities_may_be_numbers() -> None:
    limits = {"cpu": 2, "memory": 0.5, "x": "1Gi"}
    document, errors = check_pod(
        pod(
            {
                "containers": [container(resources={"limits": limits})],
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": 1024}}],
            }
        )
    )
    assert not errors
    assert document["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "2",
        "memory": "0.5",
        "x": "1Gi",
    }
    assert document["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] == "1024"


def test_ports_of_probes_are_numbers_or_strings() -> None:
    for port in (80, "http"):
        raw = of_container(livenessProbe={"httpGet": {"port": port}})
        assert found(raw) == []
    assert len(found(of_container(livenessProbe={"httpGet": {"port": []}}))) == 1


def test_a_document_without_errors_converts() -> None:
    raw = pod({"hostNetwork": True}, {"creationTimestamp": "2024-01-02T03:04:05Z"})
    document, errors = check_pod(raw)
    assert not errors
    converted = msgspec.convert(document, Pod)
    assert converted.spec is not None
    assert converted.spec.hostNetwork is True


def test_the_document_that_goes_in_stays_as_it_is() -> None:
    raw = pod({"volumes": None, "containers": [container(resources={"limits": {"cpu": 1}})]})
    before = msgspec.json.encode(raw)
    check_pod(raw)
    assert msgspec.json.encode(raw) == before
