"""The forms in which a program may hand in a pod, and what is said of wrong ones."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from lightkube.models.core_v1 import Container, Pod, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio import Kubelet, ManifestError
from kubelet_trio.embed.client_models import to_client_pod
from kubelet_trio.embed.intake import read_pod, read_pods

YAML = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
    - {name: main, image: web}
"""
DICT: dict[str, Any] = {
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "main", "image": "web"}]},
}
MODEL = Pod(
    metadata=ObjectMeta(name="web"),
    spec=PodSpec(containers=[Container(name="main", image="web")]),
)


def read(given: Any, instance: str = "i") -> Pod:
    return read_pod(given, node_name="node", instance=instance)[0]


def client_model(**fields: Any) -> Any:
    """Return what has the shape of one of the client's models."""
    names = {name: name for name in fields}
    return type("Model", (), {"openapi_types": names, "attribute_map": names, **fields})()


def v1_pod() -> Any:
    models = pytest.importorskip("kubernetes_asyncio.client.models")
    return models.V1Pod(
        metadata=models.V1ObjectMeta(name="web"),
        spec=models.V1PodSpec(containers=[models.V1Container(name="main", image="web")]),
    )


@pytest.mark.parametrize("given", [YAML, YAML.encode(), MODEL], ids=["text", "bytes", "model"])
def test_every_form_gives_the_same_pod(given: Any) -> None:
    assert read(given) == read(DICT)


def test_a_client_pod_gives_the_same_pod() -> None:
    assert read(v1_pod()) == read(DICT)


def test_a_client_pod_is_taken_without_importing_the_client() -> None:
    spec = client_model(containers=[{"name": "main", "image": "web"}])
    given = client_model(metadata=client_model(name="web", labels=None), spec=spec)
    assert read(given) == read(DICT)


async def test_a_client_pod_is_returned_on_request(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    models = pytest.importorskip("kubernetes_asyncio.client.models")
    async with kubelet.run_pod(v1_pod()) as running:
        await running.wait_ready()
        told = running.as_v1pod()
    assert isinstance(told, models.V1Pod)
    assert told.status.phase == "Running"
    assert told.status.container_statuses[0].state.running.started_at is not None
    assert read(told.spec.containers and v1_pod()) == read(DICT)


def test_without_the_extra_a_client_pod_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio.client", None)
    with pytest.raises(ImportError, match=r"kubelet-trio\[kubernetes\]"):
        to_client_pod(MODEL)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metadata": {"name": "a"}}, r"embedded: .*spec: Required value"),
        (
            {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "imge": "x"}]}},
            r'spec\.containers\[0\]\.imge: unknown field; did you mean "image"',
        ),
        (
            {"metadata": {"name": "a"}, "spec": {**DICT["spec"], "restartPolicy": "Often"}},
            r"spec\.restartPolicy: .*Often",
        ),
        ({"metadata": {"name": "A_"}, "spec": DICT["spec"]}, r"metadata\.name"),
        ({"metadata": {"name": "a"}, "spec": {"containers": object()}}, "object"),
        ("{", "embedded:1:2: expecting property name"),
        ("kind: Deployment\napiVersion: apps/v1", "Deployment"),
        (f"{YAML}---{YAML}", "expected exactly one Pod, found 2"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(given: Any, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read(given)


@pytest.mark.parametrize("given", [5, [5], None])
def test_what_is_no_pod_at_all_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match="is no pod: expected"):
        read_pods(given, node_name="node", instance="i")


def test_a_uid_is_the_contents_and_the_instances() -> None:
    assert read(DICT, "i").metadata != read(DICT, "j").metadata
    given = {**DICT, "metadata": {"name": "web", "uid": "mine"}}
    uids = {m.uid for m in (read(given, i).metadata for i in "ij") if m is not None}
    assert len(uids) == 2


async def test_nothing_starts_of_a_list_with_one_bad_pod(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    with pytest.raises(ManifestError):
        await kubelet.apply([DICT, {"metadata": {"name": "bad"}}])
    assert kubelet.pods.value == {}
