"""From the bytes of a manifest to pods that this node can run.

Bytes > `decode` (JSON or YAML documents) > `schema` (the API's types) > `support` (refused
fields) > `defaults` > `identity` (UID) > `static` (name, annotations) > `validation`. `load` is all
of it.
"""

from kubelet_trio.sources.manifest.decode import MAX_MANIFEST_SIZE
from kubelet_trio.sources.manifest.defaults import default_pod
from kubelet_trio.sources.manifest.ephemeral import load_ephemeral
from kubelet_trio.sources.manifest.identity import IsKnown, none_known
from kubelet_trio.sources.manifest.load import Manifest, load_manifest
from kubelet_trio.sources.manifest.static import (
    MANIFEST,
    manifest_name,
    manifest_of,
    mark_seen,
    seen_at,
    seen_now,
)
from kubelet_trio.sources.manifest.support import check_cluster_pod

__all__ = [
    "MANIFEST",
    "MAX_MANIFEST_SIZE",
    "IsKnown",
    "Manifest",
    "check_cluster_pod",
    "default_pod",
    "load_ephemeral",
    "load_manifest",
    "manifest_name",
    "manifest_of",
    "mark_seen",
    "none_known",
    "seen_at",
    "seen_now",
]
