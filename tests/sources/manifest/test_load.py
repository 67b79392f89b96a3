from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod, Toleration

from kubelet_trio.model import CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE, metadata, pod_uid, spec
from kubelet_trio.sources import ManifestError
from kubelet_trio.sources.manifest.static import MANIFEST, mark_seen, seen_at, seen_now
from tests.harness.pod_files import load_pods
from tests.sources.make import container, encoded, load, manifest, names

YAML = b"""\
# a comment
kind: Pod
apiVersion: v1
metadata:
  name: web
  creationTimestamp: null
spec:
  containers:
  - image: "busybox:1.36"
    name: main
status: {}
"""


def uid(*documents: Any, **where: str) -> str:
    return pod_uid(load(*documents, **where)[0])


def test_a_static_pod_has_the_nodes_name_its_source_and_its_hash() -> None:
    (pod,) = load(manifest())
    meta, body = metadata(pod), spec(pod)
    assert (meta.name, meta.namespace) == ("web-node1", "default")
    assert meta.annotations == {
        CONFIG_SOURCE: "file",
        CONFIG_HASH: meta.uid,
        MANIFEST: "/m/web.yaml",
    }
    assert body.nodeName == "Node1"
    assert body.tolerations == [Toleration(effect="NoExecute", operator="Exists")]
    assert pod.status is not None
    assert msgspec.to_builtins(pod.status) == {"phase": "Pending"}
    assert len(meta.uid or "") == 32
    assert int(meta.uid or "", 16)


def test_a_pod_from_a_url_tolerates_nothing_of_itself_and_keeps_the_url_to_itself() -> None:
    (pod,) = load(manifest(), origin="http://user:word@host/pods", source="http")
    assert spec(pod).tolerations is None
    assert "word" not in json.dumps(msgspec.to_builtins(pod))


def test_the_toleration_is_there_once() -> None:
    given_one = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    other = {"key": "a", "operator": "Exists"}
    (pod,) = load(manifest(tolerations=[given_one, other]))
    assert spec(pod).tolerations == [
        Toleration(key="a", operator="Exists"),
        Toleration(effect="NoExecute", operator="Exists"),
    ]


def test_the_uid_follows_content_node_and_source_and_nothing_else() -> None:
    first = uid(manifest())
    assert pod_uid(load_pods(YAML, "/m/web.yaml", node_name="Node1")[0]) == first
    assert uid(manifest(), manifest("other")) == first
    others = [
        uid(manifest(hostNetwork=True)),
        uid(manifest(), origin="/m/other.yaml"),
        uid(manifest(), source="http"),
        pod_uid(load_pods(encoded(manifest()), "/m/web.yaml", node_name="node2")[0]),
    ]
    assert len({first, *others}) == 5


def test_the_uid_is_the_same_in_every_release() -> None:
    assert uid(manifest()) == "f5e9d5f159e651ac4cadebac41518708"


def test_a_uid_in_the_manifest_is_kept() -> None:
    raw = manifest()
    raw["metadata"]["uid"] = "12345"
    (pod,) = load(raw)
    assert pod_uid(pod) == "12345"
    assert (metadata(pod).annotations or {})[CONFIG_HASH] == "12345"


def test_a_manifest_cannot_say_where_it_is_from() -> None:
    raw = manifest()
    raw["metadata"]["annotations"] = {
        CONFIG_SOURCE: "api",
        CONFIG_SEEN: "never",
        CONFIG_HASH: "x",
        MANIFEST: "/etc/other",
        "mine": "stays",
    }
    (pod,) = load(raw)
    assert metadata(pod).annotations == {
        CONFIG_SOURCE: "file",
        CONFIG_HASH: metadata(pod).uid,
        MANIFEST: "/m/web.yaml",
        "mine": "stays",
    }


def test_one_bad_document_refuses_the_file_with_every_reason() -> None:
    with pytest.raises(ManifestError) as caught:
        load(manifest(), manifest(restartPolicy="x"), manifest(frobnicate=1))
    assert [(e.document, e.field) for e in caught.value.errors] == [
        (2, "spec.restartPolicy"),
        (3, "spec.frobnicate"),
    ]
    assert "/m/web.yaml:3:151: spec.restartPolicy: Unsupported value" in str(caught.value)


MANY = b"""\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  restartPolicy: Sometimes
  containers:
    - name: main
      imagee: busybox
      command: sleep 1000
      resources:
        limits: {cpu: lots}
      volumeMounts:
        - {name: data, mountPath: /data}
    - image: x
  volumes:
    - nam: data
"""


def test_errors_of_all_stages_are_told_at_once_in_the_order_of_the_text() -> None:
    with pytest.raises(ManifestError) as caught:
        load_pods(MANY, "web.yaml", node_name="n")
    places = [f"{e.line}:{e.column} {e.field}" for e in caught.value.errors]
    # Without what only follows: the image that is missing, the volume that is not found.
    assert places == [
        "6:18 spec.restartPolicy",
        "9:7 spec.containers[0].imagee",
        "10:16 spec.containers[0].command",
        "12:23 spec.containers[0].resources.limits[cpu]",
        "15:7 spec.containers[1].name",
        "17:7 spec.volumes[0].nam",
    ]
    first = str(caught.value).split("; ")[0]
    assert first.startswith('web.yaml:6:18: spec.restartPolicy: Unsupported value: "Sometimes"')


def test_a_text_that_breaks_off_still_has_its_other_errors() -> None:
    with pytest.raises(ManifestError) as caught:
        load_pods(MANY + b"---\na: [\n", "web.yaml", node_name="n")
    assert len(caught.value.errors) == 7


def test_a_hundred_errors_are_told_and_the_rest_counted() -> None:
    with pytest.raises(ManifestError) as caught:
        load(manifest("web", **dict.fromkeys(map(str, range(250)), 1)))
    assert len(caught.value.errors) == 101
    assert caught.value.errors[-1].message == "and 150 more errors"


def test_items_of_a_list_are_named_by_their_place_in_it() -> None:
    listed = {"apiVersion": "v1", "kind": "PodList", "items": [manifest(), manifest(hostname="_")]}
    with pytest.raises(ManifestError) as caught:
        load(listed)
    assert [e.field for e in caught.value.errors] == ["items[1].spec.hostname"]
    assert names(load({**listed, "items": [manifest("a"), manifest("b")]})) == [
        "a-node1",
        "b-node1",
    ]


def test_a_pod_without_a_name_is_not_named_after_the_node_alone() -> None:
    with pytest.raises(ManifestError, match=r"metadata\.name: Required value"):
        load({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container()]}})
    with pytest.raises(ManifestError, match="spec: Required value"):
        load({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})


def test_when_a_pod_was_first_seen_is_marked_without_changing_it() -> None:
    (pod,) = load(manifest())
    marked = mark_seen(pod, seen_now(0.25))
    assert seen_at(marked) == "1970-01-01T00:00:00.250000Z"
    assert seen_at(pod) == ""


def test_a_loaded_pod_survives_being_written_and_read() -> None:
    raw = manifest(
        volumes=[{"name": "v", "emptyDir": {"sizeLimit": 5}}],
        containers=[container(volumeMounts=[{"name": "v", "mountPath": "/v"}])],
    )
    (pod,) = load(raw)
    assert msgspec.json.decode(msgspec.json.encode(pod), type=Pod) == pod


FIELDS = st.sampled_from(
    """
    name image spec metadata containers initContainers ports containerPort volumes emptyDir
    volumeMounts mountPath resources limits cpu labels annotations hostPath path env value
    restartPolicy tolerations dnsConfig hostAliases terminationGracePeriodSeconds uid
    """.split()  # noqa: SIM905
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=5),
    max_leaves=25,
)
bodies = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Pod")},
    optional={
        "metadata": st.fixed_dictionaries({"name": st.just("a")}) | values,
        "spec": values
        | st.fixed_dictionaries(
            {
                "containers": st.lists(
                    st.dictionaries(FIELDS, values, max_size=4).map(lambda d: {"name": "c", **d}),
                    max_size=2,
                )
            }
        ),
    },
)


@given(bodies)
def test_any_document_loads_or_is_refused(document: dict[str, Any]) -> None:
    with suppress(ManifestError):
        load(document)


@given(st.binary(max_size=60).map(lambda tail: YAML + tail))
def test_any_bytes_load_or_are_refused(data: bytes) -> None:
    with suppress(ManifestError):
        load_pods(data, "f", node_name="n")
