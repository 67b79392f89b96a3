"""Mirror pods: what stands for static pods at the API server. Pure.

Source: pod/mirror_client.go, tryReconcileMirrorPods in kubelet.go, and the orphans' rules in
kubelet_pods.go. A mirror is made and deleted by the node alone; whatever else is done to
one is undone, and nothing that is done to one does anything to the pod.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec
from lightkube.models.core_v1 import Pod
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference

from kubelet_trio.model import CONFIG_HASH, CONFIG_MIRROR, PodKey, metadata, pod_annotations

_OURS = "kubelet-trio/"  # annotations that mean nothing to anybody else


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """What to do about one name: first delete, then create."""

    key: PodKey
    delete: Pod | None = None
    create: Pod | None = None  # the static pod


def plan_mirrors(
    static: Mapping[PodKey, Pod],
    mirrors: Mapping[PodKey, Pod],
    *,
    ending: Collection[PodKey] = (),
    is_complete: bool,
) -> list[MirrorPlan]:
    """Return what to do, by name.

    Args:
        static: the static pods that are wanted.
        mirrors: what the API server has.
        ending: names of pods that are still being taken down: their mirrors stay till then.
        is_complete: whether every source has said what it wants.
    """
    plans = []
    for key, pod in static.items():
        mirror = mirrors.get(key)
        if mirror is None:
            plans.append(MirrorPlan(key, create=pod))
        elif metadata(mirror).deletionTimestamp is not None or not is_mirror_of(mirror, pod):
            plans.append(MirrorPlan(key, delete=mirror, create=pod))
    if is_complete:
        plans += [
            MirrorPlan(key, delete=mirror)
            for key, mirror in mirrors.items()
            if key not in static and key not in ending
        ]
    return plans


def is_mirror_of(mirror: Pod, pod: Pod) -> bool:
    """Return whether a mirror stands for this very static pod, not for an edit of it."""
    return pod_annotations(mirror).get(CONFIG_MIRROR) == pod_annotations(pod).get(CONFIG_HASH)


def mirror_of(pod: Pod, node_name: str, node_uid: str) -> Pod:
    """Return the object to create for a static pod."""
    annotations = {k: v for k, v in pod_annotations(pod).items() if not k.startswith(_OURS)}
    annotations[CONFIG_MIRROR] = annotations.get(CONFIG_HASH, "")
    meta = metadata(pod)
    owner = OwnerReference(
        apiVersion="v1", kind="Node", name=node_name, uid=node_uid, controller=True
    )
    return msgspec.structs.replace(
        pod,
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            labels=meta.labels,
            annotations=annotations,
            ownerReferences=[owner],
        ),
        status=None,
    )
