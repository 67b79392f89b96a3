"""Derives the UID of a static pod from its manifest.

The Go kubelet hashes the pod as printed from memory. We hash node, source and the manifest in
canonical JSON. Comments, order of fields and YAML or JSON therefore do not matter, and a newer
agent with more defaults does not restart every pod.

The amounts of CPU and memory do not matter either: a pod whose manifest changes in these alone is
the same pod, and is resized in place (KEP-1287, which leaves static pods out). Which amounts are
set and the QoS class do matter, because no resize can change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import RESIZABLE, pod_qos, resizable_amounts
from kubelet_trio.model import PodUid, blake2b

# Fields that an API server sets: in a dump from one, but not written by the author.
_SERVER_SET = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
_LISTS = ("requests", "limits")
# Sorted: the order of fields in the file must not change the UID.
_ENCODER = msgspec.json.Encoder(order="sorted")

IsKnown = Callable[[PodUid], bool]


def none_known(_uid: PodUid) -> bool:
    """Return False: no pod is known from before."""
    return False


def manifest_uid(
    document: dict[str, Any],
    pod: Pod,
    node_name: str,
    source: str,
    origin: str,
    is_known: IsKnown = none_known,
) -> PodUid:
    """Return the UID in the manifest, or 32 hex digits derived from its content.

    Args:
        document: as `check_pod` returns it: without nulls, quantities as strings.
        pod: the same, with its defaults set.
        node_name: the same manifest on two nodes gives two pods.
        source: file, http or embedded.
        origin: path or URL; the same manifest in two files gives two pods.
        is_known: whether a pod of this UID is desired already. In earlier versions of the agent
            the amounts were part of the UID. Such a pod keeps its UID until its manifest changes.
    """
    meta = document.get("metadata") or {}
    if meta.get("uid"):
        return PodUid(meta["uid"])
    content = {
        "metadata": {k: v for k, v in meta.items() if k not in _SERVER_SET},
        "spec": document.get("spec"),
    }
    uid = _digest(content, node_name, source, origin)
    # Of the defaulted pod: a limit sets the request as well, written or not.
    names = [amount[:3] for amount in resizable_amounts(pod)]
    if not names or is_known(uid):
        return uid
    content["spec"] = _without_amounts(document["spec"])
    return _digest({**content, "amounts": names, "qos": _qos(pod)}, node_name, source, origin)


def _digest(content: Mapping[str, Any], *place: str) -> PodUid:
    digest = blake2b(digest_size=16)
    for part in (_ENCODER.encode(content), *(each.encode() for each in place)):
        # Each part with its length: "ab" + "c" must not hash as "a" + "bc".
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return PodUid(digest.hexdigest())


def _qos(pod: Pod) -> str:
    try:
        return pod_qos(pod)
    except ValueError:
        return ""  # validation reports the bad quantity


def _without_amounts(document: dict[str, Any]) -> dict[str, Any]:
    """Return a spec without the amounts of CPU and memory."""
    changed = dict(document)
    for field in ("containers", "initContainers"):
        if field in document:
            changed[field] = [_container(each) for each in document[field]]
    if "resources" in document:
        # It stays even if it is empty then: without it, containers alone decide on the QoS class.
        changed["resources"] = _rest(document["resources"])
    return changed


def _container(document: dict[str, Any]) -> dict[str, Any]:
    rest = _rest(document.get("resources") or {})
    changed = {field: value for field, value in document.items() if field != "resources"}
    return {**changed, "resources": rest} if rest else changed


def _rest(resources: dict[str, Any]) -> dict[str, Any]:
    lists = {
        which: {n: v for n, v in resources[which].items() if n not in RESIZABLE}
        for which in _LISTS
        if which in resources
    }
    other = {field: value for field, value in resources.items() if field not in lists}
    return {**other, **{which: amounts for which, amounts in lists.items() if amounts}}
