"""What the page tells of one pod, and what it withholds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid
from kubelet_trio.server import PullInfo
from kubelet_trio.server.routes.page_details import amounts, manifest, pod_details, why
from tests.server.fake_view import make_pod

SECRET = "S3CRET"


def full_pod() -> Pod:
    header = {"name": "Authorization", "value": SECRET}
    get = {"httpGet": {"path": "/", "port": 80, "httpHeaders": [header]}}
    container = {
        "name": "web",
        "image": "nginx",
        "command": ["nginx"],
        "args": ["-g"],
        "env": [
            {"name": "PASSWORD", "value": SECRET},
            {"name": "EMPTY", "value": ""},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "creds", "key": "token"}}},
        ],
        "envFrom": [{"secretRef": {"name": "more"}}, {"configMapRef": {"name": "settings"}}],
        "livenessProbe": {**get, "initialDelaySeconds": 3},
        "readinessProbe": {"exec": {"command": ["true"]}},
        "startupProbe": get,
        "lifecycle": {"preStop": get, "postStart": get},
        "ports": [{"containerPort": 80, "name": "http"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
        "resources": {"requests": {"cpu": "50m", "memory": "1Mi"}, "limits": {"cpu": "1"}},
    }
    return make_pod(
        metadata={
            "name": "web",
            "namespace": "default",
            "uid": "u1",
            "labels": {"app": "web"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET},
            "managedFields": [{"manager": SECRET}],
        },
        spec={
            "initContainers": [{**container, "name": "init"}],
            "containers": [container],
            "ephemeralContainers": [{"name": "debug", "image": "sh", "env": container["env"]}],
            "volumes": [
                {"name": "data", "csi": {"driver": "d", "volumeAttributes": {"key": SECRET}}},
                {"name": "old", "flexVolume": {"driver": "f", "options": {"password": SECRET}}},
                {"name": "creds", "secret": {"secretName": "creds"}},
                {"name": "claim", "persistentVolumeClaim": {"claimName": "db"}},
                {"name": "none"},
            ],
        },
    )


def test_no_value_that_may_be_a_secret_is_told() -> None:
    text = manifest(full_pod())
    assert SECRET not in text
    assert SECRET not in str(pod_details(full_pod()))
    shown = yaml.safe_load(text)
    assert (shown["kind"], shown["apiVersion"]) == ("Pod", "v1")
    (container,) = shown["spec"]["containers"]
    assert container["env"] == [
        {"name": "PASSWORD", "value": "(left out)"},
        {"name": "EMPTY", "value": "(left out)"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "creds", "key": "token"}}},
    ]
    assert container["args"] == ["-g"]


def test_the_yaml_leaves_the_pod_as_it_is() -> None:
    pod = full_pod()
    before = msgspec.json.encode(pod)
    manifest(pod)
    assert msgspec.json.encode(pod) == before


def test_the_details_of_containers_and_volumes() -> None:
    told = pod_details(full_pod())
    init, web, debug = told["containers"]
    assert [c["kind"] for c in (init, web, debug)] == ["init", "main", "ephemeral"]
    assert web["command"] == ["nginx", "-g"]
    assert web["env"] == ["PASSWORD", "EMPTY", "TOKEN"]
    assert web["envFrom"] == ["more", "settings"]
    assert web["ports"] == ["80/TCP http"]
    assert web["requests"] == {"cpu": 50_000_000, "memory": 1 << 20}
    assert web["limits"] == {"cpu": 10**9}
    assert web["probes"]["liveness"] == (
        "http-get :80/ delay 3s timeout 1s period 10s success 1 failure 3"
    )
    assert web["probes"]["readiness"].startswith("exec ['true'] ")
    assert [(v["kind"], v["source"]) for v in told["volumes"]] == [
        ("csi", "d"),
        ("flexVolume", "f"),
        ("secret", "creds"),
        ("persistentVolumeClaim", "db"),
        ("emptyDir", ""),
    ]
    assert told["labels"] == {"app": "web"}


def resources(*each: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> Pod:
    return make_pod(
        spec={
            "containers": [{"name": f"c{i}", "resources": r} for i, r in enumerate(each)],
            "initContainers": [
                {"name": f"i{i}", "resources": r, "restartPolicy": "Always"}
                for i, r in enumerate(init)
            ],
        }
    )


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        (resources({}), {"requests": {}, "limits": {}}),
        (
            resources({"limits": {"cpu": "1"}}, {"limits": {"cpu": "500m"}}),
            {"requests": {}, "limits": {"cpu": 1_500_000_000}},
        ),
        # One without a limit: the pod has none.
        (resources({"limits": {"cpu": "1"}}, {}), {"requests": {}, "limits": {}}),
        (
            resources({"requests": {"memory": "1Ki"}}, {}),
            {"requests": {"memory": 1024}, "limits": {}},
        ),
        # A sidecar runs along.
        (
            resources({"limits": {"memory": "1Ki"}}, init=({"limits": {"memory": "1Ki"}},)),
            {"requests": {}, "limits": {"memory": 2048}},
        ),
    ],
)
def test_requests_and_limits_of_a_pod(pod: Pod, told: Any) -> None:
    assert amounts(pod) == told


def test_limits_of_the_pod_come_first() -> None:
    pod = resources({"limits": {"cpu": "1"}})
    assert pod.spec is not None
    own = msgspec.to_builtins(pod)
    own["spec"]["resources"] = {"limits": {"cpu": "3"}}
    assert amounts(msgspec.convert(own, Pod))["limits"] == {"cpu": 3 * 10**9}


def waiting(state: dict[str, Any], **status: Any) -> Pod:
    container = {"name": "web", "image": "", "imageID": "", "restartCount": 0, "ready": False}
    return make_pod(
        status={
            "phase": "Pending",
            "conditions": [{"type": "Ready", "status": "False", "message": "unready: [web]"}],
            "containerStatuses": [{**container, "state": state, **status.pop("container", {})}],
            **status,
        }
    )


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        (make_pod(), []),
        (make_pod(status=None), ["The agent has not looked at it yet."]),
        (make_pod(status={"phase": "Succeeded"}), []),
        (
            waiting({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            ["web waits: ImagePullBackOff: no such image"],
        ),
        (
            waiting({"terminated": {"exitCode": 3, "reason": "Error"}}),
            ["web has exited with 3: Error"],
        ),
        (
            waiting({"running": {}}, container={"started": False}),
            ["web runs, but its startup probe has not passed"],
        ),
        (
            waiting({"running": {}}, container={"started": True}),
            ["web runs, but its readiness probe has not passed"],
        ),
        (
            waiting({"terminated": {"exitCode": 0}}, reason="Evicted", message="low on disk"),
            ["Evicted: low on disk"],
        ),
        # Nothing better is known.
        (waiting({"terminated": {"exitCode": 0}}), ["Ready is False: unready: [web]"]),
    ],
)
def test_why_a_pod_is_not_ready(pod: Pod, told: list[str]) -> None:
    assert why(pod) == told


@pytest.mark.parametrize(
    ("is_queued", "text"),
    [
        (False, 'Pulling image "x:1" for 45 s'),
        (True, 'Waiting for other pulls to pull image "x:1" for 45 s'),
    ],
)
def test_a_pull_under_way_is_why(is_queued: bool, text: str) -> None:
    pod = waiting({"waiting": {"reason": "ContainerCreating"}})
    mine = PullInfo(PodUid("u1"), "web", "x:1", 1000.0, is_queued)
    other = PullInfo(PodUid("u2"), "web", "y:1", 1000.0, is_queued)
    assert why(pod, [other, mine], 1045.0) == [f"web waits: ContainerCreating: {text}"]
    assert why(pod, [other], 1045.0) == ["web waits: ContainerCreating"]


def test_an_init_container_that_runs_is_why() -> None:
    pod = make_pod(
        spec={"containers": [{"name": "web"}], "initContainers": [{"name": "setup"}]},
        status={
            "phase": "Pending",
            "initContainerStatuses": [
                {
                    "name": "setup",
                    "image": "",
                    "imageID": "",
                    "restartCount": 0,
                    "ready": False,
                    "state": {"running": {}},
                }
            ],
        },
    )
    assert why(pod) == ["setup, which initializes the pod, still runs"]


def test_the_agents_own_reasons_replace_those_of_the_status() -> None:
    waits = {"name": "web", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Pending", "containerStatuses": [{**waits, "state": {"waiting": {}}}]}
    pod = make_pod(status=status)
    assert pod_details(pod, reasons=["volume data: busy"])["why"] == ["volume data: busy"]
    assert pod_details(pod)["why"] == ["web waits"]
    assert pod_details(make_pod(), reasons=["a note"])["why"] == []
