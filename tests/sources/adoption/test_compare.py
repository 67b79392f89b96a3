"""Whether a manifest is what another kubelet runs a pod from."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from lightkube.models.core_v1 import Pod

from kubelet_trio.cri import v1
from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.sources import load_manifest
from kubelet_trio.sources.adoption.compare import (
    ForeignPod,
    file_difference,
    foreign_pods,
    metadata_difference,
    mirror_difference,
)

THEIRS = PodUid("4a1c")
MANIFEST: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {"by": "hand"}},
    "spec": {
        "hostNetwork": True,
        "containers": [
            {
                "name": "main",
                "image": "web:1",
                "ports": [{"containerPort": 80}],
                "env": [{"name": "EMPTY", "value": ""}],
                "resources": {"limits": {"cpu": "0.5"}},
                "livenessProbe": {"httpGet": {"port": 80}, "initialDelaySeconds": 0},
            }
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
    },
}


def loaded(manifest: dict[str, Any] = MANIFEST) -> Pod:
    (pod,) = load_manifest(yaml.safe_dump(manifest).encode(), "/m/web.yaml", node_name="n").pods
    return pod


def mirror(**changes: Any) -> Pod:
    """Return what an API server has of the mirror that the Go kubelet made of the manifest."""
    spec = {
        "hostNetwork": True,
        "containers": [
            {
                "name": "main",
                "image": "web:1",
                "ports": [{"hostPort": 80, "containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "EMPTY"}],
                "resources": {"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}},
                "livenessProbe": {
                    "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
                    "timeoutSeconds": 1,
                    "periodSeconds": 10,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                },
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "nodeName": "n",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "enableServiceLinks": True,
        **changes,
    }
    annotations = {"kubernetes.io/config.mirror": THEIRS}
    return msgspec.convert(
        {"metadata": {"name": "web-n", "annotations": annotations}, "spec": spec}, Pod
    )


def sandbox(**annotations: str) -> v1.PodSandbox:
    return v1.PodSandbox(
        id="s",
        created_at=1,
        labels={
            "io.kubernetes.pod.name": "web-n",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": THEIRS,
            "app": "web",
        },
        annotations={
            "kubernetes.io/config.hash": THEIRS,
            "kubernetes.io/config.seen": "2026-01-02T03:04:05.123456789Z",
            "kubernetes.io/config.source": "file",
            "by": "hand",
            **annotations,
        },
    )


def found(*containers: str, **annotations: str) -> ForeignPod:
    listed = [
        v1.Container(labels={**sandbox().labels, "io.kubernetes.container.name": name})
        for name in containers
    ]
    (pod,) = foreign_pods([sandbox(**annotations)], listed, {THEIRS})
    return pod


def test_a_pod_in_the_runtime_is_that_of_its_manifest() -> None:
    one = found("main")
    assert (one.uid, str(one.key), one.source) == (THEIRS, "default/web-n", "file")
    assert one.uid != pod_uid(loaded())
    assert metadata_difference(loaded(), one) == ""
    assert mirror_difference(loaded(), one, mirror()) == ""
    assert file_difference(one, one.seen - 1) == ""


def test_pods_of_the_api_server_and_of_this_agent_are_left_alone() -> None:
    api = sandbox(**{"kubernetes.io/config.source": "api"})
    assert list(foreign_pods([api], [], {THEIRS})) == []
    assert list(foreign_pods([sandbox()], [], set())) == []


@pytest.mark.parametrize(
    ("containers", "annotations", "why"),
    [
        (("main", "old"), {}, "the manifest has no container old"),
        (("main",), {"by": "machine"}, "metadata.annotations differ"),
        (("main",), {"kubernetes.io/config.source": "http"}, "it comes from source http"),
    ],
)
def test_a_pod_of_other_metadata_is_another(
    containers: tuple[str, ...], annotations: dict[str, str], why: str
) -> None:
    assert why in metadata_difference(loaded(), found(*containers, **annotations))


def test_a_pod_of_other_labels_is_another() -> None:
    other = {**MANIFEST, "metadata": {**MANIFEST["metadata"], "labels": {"app": "db"}}}
    assert "metadata.labels differ" in metadata_difference(loaded(other), found("main"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hostNetwork": False}, "spec.hostNetwork"),
        ({"hostPID": True}, "spec.hostPID"),
        ({"restartPolicy": "Never"}, "spec.restartPolicy"),
        ({"volumes": [{"name": "data", "hostPath": {"path": "/"}}]}, "spec.volumes[0].hostPath"),
        ({"securityContext": {"runAsUser": 0}}, "spec.securityContext"),
        ({"terminationGracePeriodSeconds": 0}, "spec.terminationGracePeriodSeconds"),
        (
            {"tolerations": [{"key": "mine", "operator": "Exists"}]},
            "spec.tolerations",
        ),
    ],
)
def test_a_mirror_of_another_spec_names_the_field(changes: dict[str, Any], field: str) -> None:
    difference = mirror_difference(loaded(), found("main"), mirror(**changes))
    assert difference.startswith(field), difference


def test_what_admission_adds_to_a_mirror_is_no_difference() -> None:
    added = [
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
        {"operator": "Exists", "effect": "NoExecute"},
    ]
    shown = mirror(tolerations=added, priority=7, priorityClassName="usual", serviceAccountName="x")
    assert mirror_difference(loaded(), found("main"), shown) == ""


def test_a_mirror_of_another_pod_shows_nothing() -> None:
    other = found("main")
    shown = mirror()
    assert shown.metadata is not None
    shown.metadata.annotations = {"kubernetes.io/config.mirror": "else"}
    assert "another pod's" in mirror_difference(loaded(), other, shown)
    assert mirror_difference(loaded(), other, None) == "no mirror pod is known"


def test_a_file_that_changed_later_shows_nothing() -> None:
    one = found("main")
    assert "has changed" in file_difference(one, one.seen + 1)
    assert "not known" in file_difference(one, None)
    unseen = found("main", **{"kubernetes.io/config.seen": "yesterday"})
    assert "does not say" in file_difference(unseen, 0)
