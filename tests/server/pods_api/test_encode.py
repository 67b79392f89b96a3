"""Pods are encoded as core/v1 has them: protobuf's own decoder reads what JSON says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import parse_quantity
from kubelet_trio.server.pods_api.encode import (
    EMBEDDED,
    PodEncoder,
    encode_deleted,
    encode_message,
    encode_pod,
)
from kubelet_trio.server.pods_api.table import FIELDS
from tests.harness.node_stubs import stubs
from tests.server.pods_api.pods import pod_named

EPOCH = "2008-01-01T01:01:01Z"
SPECIAL = {"FieldsV1", "IntOrString", "Quantity", "Time"}
# What the models, of a newer Kubernetes, have beyond 1.36.
NEWER = {
    "ClusterTrustBundleProjection.user",
    "ConfigMapVolumeSource.defaultUser",
    "DownwardAPIVolumeFile.user",
    "DownwardAPIVolumeSource.defaultUser",
    "EmptyDirVolumeSource.mode",
    "EvictionResponder",
    "GRPCAction.mode",
    "HTTPGetAction.protocol",
    "KeyToPath.user",
    "NodeAllocatableMappedResources",
    "NodeAllocatableOverheadResources",
    "NodeAllocatableResourceClaimStatus.mapping",
    "NodeAllocatableResourceClaimStatus.overhead",
    "PodCertificateProjection.user",
    "PodSpec.evictionResponders",
    "PodStatus.volumeHealth",
    "PodVolumeHealth",
    "ProjectedVolumeSource.defaultUser",
    "SecretVolumeSource.defaultUser",
    "ServiceAccountTokenProjection.user",
    "VolumeHealthCondition",
    "VolumeMount.bindMountOptions",
}


def decoded(data: bytes) -> Any:
    """Return what protobuf's own decoder reads."""
    messages, _ = stubs("pod")
    message = messages.Pod()
    message.ParseFromString(data)
    return message


def as_json(message: Any) -> Any:
    """Return the JSON form of a decoded message, as Kubernetes has it."""
    name = message.DESCRIPTOR.name
    if name == "Time":
        return datetime.fromtimestamp(message.seconds).astimezone().isoformat()
    if name == "Quantity":
        return message.string
    if name == "IntOrString":
        return message.strVal if message.type else message.intVal
    if name == "FieldsV1":
        return msgspec.json.decode(message.Raw)
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inside = field.message_type.fields_by_name["value"].message_type
            found[field.name] = {
                k: value[k] if inside is None else as_json(value[k]) for k in value
            }
        elif field.message_type is None:
            found[field.name] = list(value) if field.is_repeated else value
        elif field.is_repeated:
            found[field.name] = [as_json(item) for item in value]
        elif field.name in EMBEDDED:
            found |= as_json(value)
        else:
            found[field.name] = as_json(value)
    return found


def filled(name: str, depth: int = 0) -> dict[str, Any]:
    """Return the JSON form of a message with every field set, as far as it does not recurse."""
    found: dict[str, Any] = {}
    for at, (key, (_, kind, is_repeated)) in enumerate(FIELDS[name].items()):
        if key in EMBEDDED:
            found |= filled(kind, depth + 1)
        elif kind.startswith("map:"):
            found[key] = {"b": sample(kind[4:], at, depth), "a": sample(kind[4:], at + 1, depth)}
        elif is_repeated:
            found[key] = [sample(kind, at, depth), sample(kind, at + 1, depth)]
        else:
            found[key] = sample(kind, at, depth)
    return found


def sample(kind: str, at: int, depth: int) -> Any:
    simple: dict[str, Any] = {
        "string": f"text {at} ü",
        "bool": at % 2 == 0,
        "int32": -at,
        "int64": (1 << 40) + at,
        "Quantity": f"{at + 1}Gi",
        "Time": EPOCH,
        "IntOrString": "http" if at % 2 else 8080,
        "FieldsV1": {"f:metadata": {}},
    }
    return simple[kind] if kind in simple else filled(kind, depth + 1)


def times(value: Any) -> Any:
    """Return JSON with its times as `datetime`."""
    if isinstance(value, dict):
        return {k: times(v) for k, v in value.items()}
    if isinstance(value, list):
        return [times(v) for v in value]
    return datetime.fromisoformat(value.replace("Z", "+00:00")) if value == EPOCH else value


def same_times(value: Any) -> Any:
    """Return JSON with each time in one form."""
    text = datetime.fromisoformat(EPOCH.replace("Z", "+00:00")).astimezone().isoformat()
    if isinstance(value, dict):
        return {k: same_times(v) for k, v in value.items()}
    if isinstance(value, list):
        return [same_times(v) for v in value]
    return text if value == EPOCH else value


def test_every_field_of_the_table_arrives_under_its_name() -> None:
    everything = filled("Pod")
    message = decoded(encode_message("Pod", times(everything)))
    assert as_json(message) == same_times(everything)
    assert message.SerializeToString(deterministic=True)


def structs(root: Any) -> Iterator[Any]:
    """Yield a model and all models below it."""
    todo, seen = [root], set()
    while todo:
        model = todo.pop()
        if model in seen:
            continue
        seen.add(model)
        yield model
        for hint in get_type_hints(model).values():
            todo += [t for t in inner_types(hint) if hasattr(t, "__struct_fields__")]


def inner_types(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in get_args(hint):
        yield from inner_types(argument)


def json_names(message: str) -> set[str]:
    names: set[str] = set()
    for key, (_, kind, _repeated) in FIELDS[message].items():
        names |= json_names(kind) if key in EMBEDDED else {key}
    return names


def test_the_table_has_the_fields_of_the_models() -> None:
    found, checked = set(), 0
    for model in structs(Pod):
        name = model.__name__
        if name in SPECIAL:
            continue
        if name not in FIELDS:
            found.add(name)
            continue
        fields = {field.encode_name for field in msgspec.structs.fields(model)}
        # Kind and version are not in the protobuf form.
        for field in fields - json_names(name) - {"apiVersion", "kind"}:
            found.add(f"{name}.{field}")
        checked += 1
    assert checked > 100
    assert found == NEWER


QUANTITIES = [
    ("1000m", "1"),
    ("1024Ki", "1Mi"),
    ("0.5", "500m"),
    ("1e3", "1e3"),
    ("nonsense", "nonsense"),
]


@pytest.mark.parametrize(("given", "expected"), QUANTITIES)
def test_quantities_are_in_their_canonical_form(given: str, expected: str) -> None:
    data = encode_message("ResourceRequirements", {"limits": {"cpu": given}})
    messages, _ = stubs("pod")
    message = messages.ResourceRequirements()
    message.ParseFromString(data)
    assert message.limits["cpu"].string == expected
    if expected != "nonsense":
        assert parse_quantity(given) == parse_quantity(expected)


def test_an_absent_field_stays_absent_and_an_empty_one_empty() -> None:
    given = {
        "containers": [],
        "hostNetwork": False,
        "securityContext": {},
        "volumes": [{"name": "v", "emptyDir": {}}],
    }
    message = decoded(encode_pod(msgspec.convert({"spec": given}, Pod)))
    spec = message.spec
    assert spec.HasField("hostNetwork")
    assert not spec.HasField("hostPID")
    assert spec.HasField("securityContext")
    assert spec.volumes[0].volumeSource.HasField("emptyDir")
    assert not message.HasField("status")


def test_text_that_is_no_unicode_hides_no_pod() -> None:
    pod = pod_named("web")
    assert pod.metadata is not None
    pod.metadata.annotations = {"a": "x\ud800"}
    assert decoded(encode_pod(pod)).metadata.annotations["a"] == "x?"


def test_a_deleted_pod_has_its_name_alone() -> None:
    message = decoded(encode_deleted(pod_named("web")))
    assert as_json(message) == {"metadata": {"name": "web", "namespace": "ns", "uid": "web-uid"}}


def test_a_pod_is_encoded_again_only_if_it_is_another() -> None:
    encoder, web, db = PodEncoder(), pod_named("web"), pod_named("db")
    first = encoder.encode(web)
    assert encoder.encode(web) is first
    again = pod_named("web")
    assert encoder.encode(again) is not first
    other = encoder.encode(db)
    encoder.keep_only({"web-uid": again})  # type: ignore[dict-item]
    assert encoder.encode(db) is not other


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.text())
def test_any_number_and_any_text_are_read_back(number: int, text: str) -> None:
    value = {
        "terminationGracePeriodSeconds": number,
        "nodeName": text.encode("utf-8", "replace").decode(),
    }
    message = decoded(encode_message("Pod", {"spec": value}))
    assert message.spec.terminationGracePeriodSeconds == number
    assert message.spec.nodeName == value["nodeName"]
