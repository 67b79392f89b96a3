"""Decides whether a manifest is what another kubelet runs a static pod from: pure.

A static pod's UID is the Go kubelet's digest of its own structures in memory, which differ from
version to version, so it cannot be computed here. That the pod in the runtime is the manifest's is
shown by either of two things:

* the mirror pod: its spec is what the Go kubelet has read, with defaults set;
* the file: it has not changed since the Go kubelet first saw the pod (`config.seen`).

Labels and annotations of the sandbox have to be the manifest's in both cases.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import CONTAINER_NAME, pod_identity, pod_labels_of
from kubelet_trio.cri import v1
from kubelet_trio.model import (
    CONFIG_HASH,
    CONFIG_MIRROR,
    CONFIG_SEEN,
    CONFIG_SOURCE,
    PodKey,
    PodUid,
    metadata,
    pod_annotations,
    pod_containers,
    pod_key,
    spec,
)
from kubelet_trio.sources.manifest.defaults import default_pod

STATIC = frozenset({"file", "http"})  # sources of static pods that the Go kubelet knows

_CONFIG = frozenset({CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE})
_OWN_PREFIX = "kubelet-trio/"
# What an API server and its admission set in a mirror pod whose manifest leaves them out.
_ADMITTED = frozenset(
    {
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "serviceAccount",
        "serviceAccountName",
    }
)
# Go leaves these out of its JSON where they are false or 0. Other fields tell 0 from unset.
_PLAIN = frozenset(
    {
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostPort",
        "initialDelaySeconds",
        "readOnly",
        "stdin",
        "stdinOnce",
        "tty",
    }
)


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A static pod that the runtime holds and another kubelet has started."""

    uid: PodUid
    key: PodKey
    source: str  # file or http
    seen: float  # Unix seconds at which that kubelet first saw it; 0: it does not say
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    containers: frozenset[str] = frozenset()  # their names


def foreign_pods(
    sandboxes: Collection[v1.PodSandbox],
    containers: Collection[v1.Container],
    is_foreign: Collection[PodUid],
) -> Iterator[ForeignPod]:
    """Yield the static pods among the runtime's objects, each by its newest sandbox."""
    names: dict[str, set[str]] = {}
    for container in containers:
        identity = pod_identity(container.labels)
        if identity is not None:
            names.setdefault(identity.uid, set()).add(container.labels.get(CONTAINER_NAME, ""))
    done: set[PodUid] = set()
    for sandbox in sorted(sandboxes, key=lambda s: s.created_at, reverse=True):
        identity = pod_identity(sandbox.labels)
        source = sandbox.annotations.get(CONFIG_SOURCE, "")
        if identity is None or identity.uid not in is_foreign or source not in STATIC:
            continue
        if identity.uid in done:
            continue
        done.add(identity.uid)
        yield ForeignPod(
            identity.uid,
            PodKey(identity.namespace, identity.name),
            source,
            _seconds(sandbox.annotations.get(CONFIG_SEEN, "")),
            pod_labels_of(sandbox.labels),
            _written(sandbox.annotations),
            frozenset(names.get(identity.uid, ())),
        )


def _seconds(text: str) -> float:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _written(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that the manifest's author wrote."""
    return {
        key: value
        for key, value in annotations.items()
        if key not in _CONFIG and not key.startswith(_OWN_PREFIX)
    }


def metadata_difference(pod: Pod, found: ForeignPod) -> str:
    """Return what of a pod in the runtime is not this manifest's, "" if nothing is."""
    source = pod_annotations(pod).get(CONFIG_SOURCE, "")
    if source != found.source:
        return f"it comes from source {found.source}, the manifest from {source}"
    if dict(found.labels) != (metadata(pod).labels or {}):
        return "metadata.labels differ from those of its sandbox"
    if dict(found.annotations) != _written(pod_annotations(pod)):
        return "metadata.annotations differ from those of its sandbox"
    extra = found.containers - {c.spec.name for c in pod_containers(pod)}
    if extra:
        return f"the manifest has no container {', '.join(sorted(extra))}"
    return ""


def mirror_difference(pod: Pod, found: ForeignPod, mirror: Pod | None) -> str:
    """Return why a mirror pod does not show that the pod is this manifest's, "" if it does."""
    if mirror is None:
        return "no mirror pod is known"
    if pod_annotations(mirror).get(CONFIG_MIRROR) != found.uid:
        return "the mirror pod of its name is another pod's"
    try:
        shown = default_pod(mirror)
    except (TypeError, ValueError) as exc:
        return f"the mirror pod cannot be read: {exc}"
    one, other = _plain(spec(pod)), _plain(spec(shown))
    for field in _ADMITTED:
        if field not in one:
            other.pop(field, None)
    extra = [t for t in other.get("tolerations", ()) if t not in one.get("tolerations", ())]
    if all(str(t.get("key", "")).startswith("node.kubernetes.io/") for t in extra):
        # Admission adds tolerations, and may change their order.
        other["tolerations"] = one.get("tolerations", [])
    return _difference(one, other, "spec")


def file_difference(found: ForeignPod, changed_at: float | None) -> str:
    """Return why the manifest's file does not show it, "" if it does.

    Args:
        found: the pod in the runtime.
        changed_at: Unix seconds of the last change of the file, as the kernel dates it; None: it
            is not known.
    """
    if changed_at is None:
        return "when the manifest last changed is not known"
    if not found.seen:
        return "its sandbox does not say when it was first seen"
    if changed_at > found.seen:
        return "its file has changed since the pod was first seen"
    return ""


def same_name(pod: Pod, found: ForeignPod) -> bool:
    """Return whether both have one namespace and name."""
    return pod_key(pod) == found.key


def _plain(value: Any) -> dict[str, Any]:
    body = msgspec.to_builtins(value)
    pruned = _pruned(body)
    assert isinstance(pruned, dict)
    return pruned


def _pruned(value: Any) -> Any:
    """Return a JSON value without what Go's JSON leaves out."""
    if isinstance(value, dict):
        items = {key: _pruned(item) for key, item in value.items()}
        return {
            key: item
            for key, item in items.items()
            if item is not None
            and item not in ("", [], {})
            and not (key in _PLAIN and not item)
            # An older Go kubelet writes this default, a newer one does not.
            and (key, item) != ("procMount", "Default")
        }
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value


def _difference(one: Any, other: Any, field: str) -> str:
    """Return the first field in which the manifest and the mirror differ, in words."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{field}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            if left != right:
                return _difference(left, right, f"{field}[{index}]")
    return f"{field} differs from its mirror pod's" if one != other else ""
