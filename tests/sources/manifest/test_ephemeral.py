"""An ephemeral container is validated as the API server does it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lightkube.models.core_v1 import Pod

from kubelet_trio.sources import ManifestError, load_ephemeral
from tests.agent.node import make_pod

AT = "spec.ephemeralContainers[0]"


@pytest.fixture
def pod() -> Pod:
    volumes = ("volumes: [{name: data, emptyDir: {}}]", "initContainers: [{name: init, image: i}]")
    return make_pod(spec=volumes)


def given(**fields: Any) -> bytes:
    return json.dumps({"name": "debugger", "image": "busybox:1", **fields}).encode()


def test_what_is_omitted_gets_its_default(pod: Pod) -> None:
    found = load_ephemeral(given(), pod)
    assert found.imagePullPolicy == "IfNotPresent"
    assert found.terminationMessagePath == "/dev/termination-log"
    assert found.terminationMessagePolicy == "File"
    assert found.resources is None


def test_all_that_it_may_have_is_taken(pod: Pod) -> None:
    found = load_ephemeral(
        given(
            targetContainerName="init",
            command=["sh"],
            env=[{"name": "A", "value": "b"}],
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
            securityContext={"capabilities": {"add": ["SYS_PTRACE"]}},
            stdin=True,
            tty=True,
        ),
        pod,
    )
    assert found.targetContainerName == "init"
    assert found.tty


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": "web"}, '.name: Duplicate value: "web"'),
        ({"name": "No"}, '.name: Invalid value: "No"'),
        ({"image": ""}, ".image: Required value"),
        ({"targetContainerName": "debugger"}, '.targetContainerName: Not found: "debugger"'),
        ({"ports": [{"containerPort": 1}]}, ".ports: Forbidden: cannot be set"),
        ({"resources": {"limits": {"cpu": "1"}}}, ".resources: Forbidden: cannot be set"),
        ({"livenessProbe": {"exec": {"command": ["a"]}}}, ".livenessProbe: Forbidden"),
        ({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, ".lifecycle: Forbidden"),
        ({"restartPolicy": "Always"}, ".restartPolicy: Forbidden"),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "s"}]},
            ".volumeMounts[0].subPath: Forbidden: cannot be set",
        ),
        (
            {"volumeMounts": [{"name": "other", "mountPath": "/d"}]},
            '.volumeMounts[0].name: Not found: "other"',
        ),
        ({"comand": ["sh"]}, '.comand: unknown field; did you mean "command"?'),
        ({"command": "sh"}, '.command: Invalid value: "sh": expected a list'),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/d", "bindMountOptions": ["x"]}]},
            ".volumeMounts[0].bindMountOptions: bind mount options are not supported",
        ),
    ],
)
def test_a_mistake_is_told_with_its_field(pod: Pod, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load_ephemeral(given(**fields), pod)
    assert f"debug container: {AT}" in str(caught.value)
    assert error in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'"x"', b"[" * 100_000])
def test_other_bytes_are_refused(pod: Pod, data: bytes) -> None:
    with pytest.raises(ManifestError):
        load_ephemeral(data, pod)
