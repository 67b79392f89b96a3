"""Pod sources: manifest files, a manifest URL, the API server; and the merge of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.sources.errors import FieldError, ManifestError
from kubelet_trio.sources.files import FileSource
from kubelet_trio.sources.http import HttpSource
from kubelet_trio.sources.manifest import (
    IsKnown,
    Manifest,
    check_cluster_pod,
    default_pod,
    load_manifest,
    mark_seen,
    none_known,
)
from kubelet_trio.sources.merge import run_merge
from kubelet_trio.sources.runtime_classes import with_overhead
from kubelet_trio.sources.source import Desired, Source, SourceProblem, SourceSnapshot

if TYPE_CHECKING:
    from kubelet_trio.sources.apiserver import ApiSource

# Loaded on first use: only a node of a cluster needs it.
_DEFERRED = {
    "ApiSource": "apiserver",
}

__all__ = [
    "ApiSource",
    "Desired",
    "FieldError",
    "FileSource",
    "HttpSource",
    "IsKnown",
    "Manifest",
    "ManifestError",
    "Source",
    "SourceProblem",
    "SourceSnapshot",
    "check_cluster_pod",
    "default_pod",
    "load_manifest",
    "mark_seen",
    "none_known",
    "run_merge",
    "with_overhead",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
