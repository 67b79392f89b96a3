"""Encodes pods as the protobuf messages of core/v1, which is how Go's `Pod.Unmarshal` reads them.

The agent's pods are what JSON has of them, and the table has the fields by their JSON names. The
two forms differ: a field that Go embeds is a message of its own in protobuf; and times, quantities
and IntOrString are texts or numbers in JSON, but messages in protobuf. Fields that Kubernetes 1.36
does not have are not in the table, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    PodUid,
    canonical_quantity,
    encode_bytes,
    encode_number,
    metadata,
    pod_uid,
)
from kubelet_trio.server.pods_api.table import FIELDS

# Fields that Go embeds (`json:",inline"`): in JSON, their own fields are those of the message.
EMBEDDED = frozenset(
    {"ephemeralContainerCommon", "handler", "localObjectReference", "volumeSource"}
)
_NUMBERS = frozenset({"bool", "int32", "int64"})


class PodEncoder:
    """Encodes pods, and keeps what it has encoded while the pod is the same object."""

    def __init__(self) -> None:
        self._kept: dict[PodUid, tuple[Pod, bytes]] = {}

    def encode(self, pod: Pod) -> bytes:
        """Return a pod as a core/v1 Pod message."""
        uid = pod_uid(pod)
        kept = self._kept.get(uid)
        if kept is None or kept[0] is not pod:
            kept = self._kept[uid] = pod, encode_pod(pod)
        return kept[1]

    def keep_only(self, pods: Mapping[PodUid, Pod]) -> None:
        """Forget all pods but these."""
        for uid in self._kept.keys() - pods.keys():
            del self._kept[uid]


def encode_pod(pod: Pod) -> bytes:
    """Return a pod as a core/v1 Pod message."""
    return encode_message("Pod", msgspec.to_builtins(pod, builtin_types=(datetime,)))


def encode_deleted(pod: Pod) -> bytes:
    """Return what a DELETED event has of a pod: namespace, name and UID."""
    meta = metadata(pod)
    known = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
    return encode_message("Pod", {"metadata": known})


def encode_message(name: str, value: Mapping[str, Any]) -> bytes:
    """Return a message of the table, from its JSON form with times as datetime."""
    return b"".join(_fields(name, value))


def _fields(name: str, value: Mapping[str, Any]) -> Iterator[bytes]:
    for key, (number, kind, is_repeated) in FIELDS[name].items():
        if key in EMBEDDED:
            if inner := encode_message(kind, value):
                yield encode_bytes(number, inner)
            continue
        found = value.get(key)
        if found is None:
            continue
        if kind.startswith("map:"):
            inside = kind.removeprefix("map:")
            for entry, content in sorted(found.items()):
                # protobuf.dev, Encoding: an entry is a message with the key 1 and the value 2.
                pair = encode_bytes(1, _utf8(entry)) + _field(2, inside, content)
                yield encode_bytes(number, pair)
        elif is_repeated:
            for item in found:
                yield _field(number, kind, item)
        else:
            yield _field(number, kind, found)


def _field(number: int, kind: str, value: Any) -> bytes:
    if kind in _NUMBERS:
        return encode_number(number, int(value))
    if kind == "string":
        return encode_bytes(number, _utf8(str(value)))
    special = _SPECIAL.get(kind)
    content = encode_message(kind, value) if special is None else special(value)
    return encode_bytes(number, content)


def _utf8(text: str) -> bytes:
    # A manifest in YAML may hold surrogates: no text for protobuf, and no reason to hide all pods.
    return text.encode("utf-8", "replace")


def _time(value: datetime) -> bytes:
    # ProtoTime of metav1.Time: whole seconds, as in JSON.
    return encode_number(1, int(value.timestamp() // 1)) + encode_number(2, 0)


def _quantity(value: str | float) -> bytes:
    try:
        text = canonical_quantity(str(value))
    except ValueError:
        text = str(value)
    return encode_bytes(1, _utf8(text))


def _int_or_string(value: int | str) -> bytes:
    kind, number, text = (0, value, "") if isinstance(value, int) else (1, 0, value)
    return encode_number(1, kind) + encode_number(2, number) + encode_bytes(3, _utf8(text))


def _raw_json(value: object) -> bytes:
    return encode_bytes(1, msgspec.json.encode(value))


# The messages that have another form in JSON.
_SPECIAL: Mapping[str, Callable[[Any], bytes]] = {
    "FieldsV1": _raw_json,
    "IntOrString": _int_or_string,
    "Quantity": _quantity,
    "Time": _time,
}
