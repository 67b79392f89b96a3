"""What a pod of a cluster does not get: others' images, and what this node cannot do."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness import Agent, Json, container, forever, images, is_ready, machine, pod
from tests.harness.control_plane import ControlPlane
from tests.harness.kube import KubeClient
from tests.harness.registry import Registry, open_registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with open_registry() as opened:
        yield opened


NAME = "refusing"  # a node of its own: others register with other labels


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, kube: KubeClient, make_agent: Callable[..., Agent]) -> Agent:
    kube.prepare_namespace("kube-node-lease", plane.authority.certificate)
    kubeconfig = str(plane.node_kubeconfig(NAME))
    arguments = ("--kubeconfig", kubeconfig, "--hostname-override", NAME)
    config = {"imagePullCredentialsVerificationPolicy": "AlwaysVerify"}
    made = make_agent(arguments=arguments, config=config)
    made.start()
    return made


def bound(name: str, *containers: Json, **spec: Any) -> Json:
    return pod(name, *containers, nodeName=NAME, automountServiceAccountToken=False, **spec)


def private_image(registry: Registry) -> str:
    """Offer an image to `user:pass` alone; return its reference."""
    program = machine.busybox()
    assert program is not None
    image = images.busybox_image(program)
    mark = {"etc/mark": (0o644, b"of the tests of refusals")}
    registry.logins["private"] = "user:pass"
    return registry.add("private:1", dataclasses.replace(image, files={**image.files, **mark}))


def waiting(found: Json) -> str:
    """Return the reason for which a pod's container waits, "" if it does not."""
    (status,) = found["status"].get("containerStatuses") or [{}]
    reason: str = status.get("state", {}).get("waiting", {}).get("reason", "")
    return reason


def test_an_image_is_for_those_who_could_pull_it(
    agent: Agent, kube: KubeClient, namespace: str, registry: Registry
) -> None:
    image = private_image(registry)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    login = {"auths": {f"127.0.0.1:{registry.port}": {"username": "user", "password": "pass"}}}
    kube.create(
        f"/api/v1/namespaces/{namespace}/secrets",
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "login"},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": base64.b64encode(json.dumps(login).encode()).decode()},
        },
    )
    secrets = [{"name": "login"}]
    main = container("main", forever(), image=image)
    for name in ("first", "second"):
        kube.create(pods, bound(name, main, imagePullSecrets=secrets))
        kube.wait(f"{pods}/{name}", is_ready, 60, "ready")
        registry.logins["private"] = "nobody:any longer"  # who has shown it need not again
    never = {**main, "imagePullPolicy": "Never"}
    kube.create(pods, bound("without", main))
    kube.create(pods, bound("never", never))
    refused = ("ErrImagePull", "ImagePullBackOff")
    kube.wait(f"{pods}/without", lambda p: waiting(p) in refused, 60, "refused")
    kube.wait(f"{pods}/never", lambda p: waiting(p) == "ErrImageNeverPull", 60, "never")
    (record,) = (
        found
        for path in (agent.root / "image_manager" / "pulled").iterdir()
        if image.partition(":1")[0] in (found := path.read_text()) and "kubernetesSecrets" in found
    )
    assert f'"namespace":"{namespace}","name":"login"' in record
    for name in ("first", "second", "without", "never"):
        kube.delete(f"{pods}/{name}", gracePeriodSeconds=0)
        kube.wait_gone(f"{pods}/{name}", 60)


def test_a_pod_that_asks_for_what_is_not_done_fails_and_says_so(
    agent: Agent, kube: KubeClient, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    gone = {"name": "v", "cephfs": {"monitors": ["192.0.2.1"]}}  # no kubelet mounts these any more
    kube.create(path, bound("disk", volumes=[gone]))
    failed = kube.wait(f"{path}/disk", lambda p: p["status"]["phase"] == "Failed", 60, "failed")
    assert failed["status"]["reason"] == "PodFeatureUnsupported"
    assert "spec.volumes[0].cephfs: " in failed["status"]["message"]
    assert "containerStatuses" not in failed["status"]
    kube.delete(f"{path}/disk")
    kube.wait_gone(f"{path}/disk", 60)
