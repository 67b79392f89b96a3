"""Marks a static pod: its UID, its name on this node, and annotations for its source.

The rules are the Go kubelet's (pkg/kubelet/config/common.go), except for the UID: see `identity`.
"""

from __future__ import annotations

import datetime

from lightkube.models.core_v1 import Pod, PodStatus, Toleration
from lightkube.models.meta_v1 import ObjectMeta
from msgspec.structs import replace

from kubelet_trio.model import CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE, INSTANCE, PodUid

MANIFEST = "kubelet-trio/manifest"  # annotation: the file that the pod comes from


def make_static(pod: Pod, uid: PodUid, node_name: str, source: str, origin: str) -> Pod:
    """Return the pod as this node runs it. `config.seen` is left to `mark_seen`."""
    assert pod.metadata is not None
    assert pod.spec is not None
    name = pod.metadata.name or ""
    annotations = {
        **{k: v for k, v in (pod.metadata.annotations or {}).items() if k != CONFIG_SEEN},
        CONFIG_SOURCE: source,
        CONFIG_HASH: uid,
    }
    # A copy of another pod's YAML may contain our annotations.
    annotations.pop(MANIFEST, None)
    annotations.pop(INSTANCE, None)  # only the agent marks its pods
    if source == "file":  # not for URLs: one may contain a password
        annotations[MANIFEST] = origin
    meta = replace(
        pod.metadata,
        # The suffix keeps mirror pods of several nodes apart; embedded pods have no mirrors.
        name=name if source == "embedded" else f"{name}-{node_name.lower()}",
        namespace=pod.metadata.namespace or "default",
        uid=uid,
        annotations=annotations,
    )
    spec = replace(pod.spec, nodeName=node_name)
    if source == "file":
        # As applyDefaults in pkg/kubelet/config/common.go: a NoExecute taint must not end the
        # pod, because nothing would start it on another node.
        spec = replace(spec, tolerations=_with_no_execute(spec.tolerations or []))
    return Pod(
        apiVersion="v1", kind="Pod", metadata=meta, spec=spec, status=PodStatus(phase="Pending")
    )


def _with_no_execute(tolerations: list[Toleration]) -> list[Toleration]:
    wanted = Toleration(operator="Exists", effect="NoExecute")
    kept = [
        t
        for t in tolerations
        if (t.key or "", t.effect, t.operator or "Equal", t.value or "")
        != ("", "NoExecute", "Exists", "")
    ]
    return [*kept, wanted]


def mark_seen(pod: Pod, seen: str) -> Pod:
    """Return the pod with the time at which this agent first saw it."""
    meta: ObjectMeta = pod.metadata or ObjectMeta()
    annotations = {**(meta.annotations or {}), CONFIG_SEEN: seen}
    return replace(pod, metadata=replace(meta, annotations=annotations))


def manifest_name(pod: Pod, node_name: str) -> str:
    """Return the name of a static pod as its manifest has it."""
    name = (pod.metadata.name if pod.metadata else None) or ""
    return name.removesuffix(f"-{node_name.lower()}")


def manifest_of(pod: Pod) -> str:
    """Return the file that the pod was read from, "" if from none."""
    annotations = (pod.metadata.annotations if pod.metadata else None) or {}
    return str(annotations.get(MANIFEST, ""))


def seen_at(pod: Pod) -> str:
    """Return when the pod was first seen, "" if it is not marked."""
    annotations = (pod.metadata.annotations if pod.metadata else None) or {}
    return str(annotations.get(CONFIG_SEEN, ""))


def seen_now(seconds: float) -> str:
    """Return Unix seconds in the format of `config.seen`: RFC 3339 with microseconds, UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
