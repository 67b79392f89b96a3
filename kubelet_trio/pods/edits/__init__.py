"""Say what an edit of manifests would do to the pods of this node. Pure."""

from kubelet_trio.pods.edits.changes import (
    as_json,
    changed_fields,
    container_changes,
    ended_containers,
    new_containers,
    volume_changes,
)
from kubelet_trio.pods.edits.types import (
    ContainerChange,
    EditPlan,
    ObjectChange,
    PodChange,
    Verdict,
    VolumeChange,
)

__all__ = [
    "ContainerChange",
    "EditPlan",
    "ObjectChange",
    "PodChange",
    "Verdict",
    "VolumeChange",
    "as_json",
    "changed_fields",
    "container_changes",
    "ended_containers",
    "new_containers",
    "volume_changes",
]
