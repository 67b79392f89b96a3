"""Where pods come from: manifest files, a manifest URL, and the merge of all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.sources._errors import FieldError, ManifestError
from kubelet_trio.sources.defaults import default_pod
from kubelet_trio.sources.file import FileSource
from kubelet_trio.sources.http import HttpSource
from kubelet_trio.sources.load import Manifest, load_manifest, load_pods
from kubelet_trio.sources.merge import run_merge
from kubelet_trio.sources.scan import WatchPoints
from kubelet_trio.sources.support import check_cluster_pod
from kubelet_trio.sources.types import Desired, Source, SourceProblem, SourceSnapshot
from kubelet_trio.sources.validate import validate_pod
from kubelet_trio.sources.watch import Change, Watcher

if TYPE_CHECKING:
    from kubelet_trio.sources.apiserver import FALLBACK_AFTER, ApiSource

# What only a node of a cluster needs is loaded by those who have one.
_DEFERRED = {
    "FALLBACK_AFTER": "apiserver",
    "ApiSource": "apiserver",
}

__all__ = [
    "FALLBACK_AFTER",
    "ApiSource",
    "Change",
    "Desired",
    "FieldError",
    "FileSource",
    "HttpSource",
    "Manifest",
    "ManifestError",
    "Source",
    "SourceProblem",
    "SourceSnapshot",
    "WatchPoints",
    "Watcher",
    "check_cluster_pod",
    "default_pod",
    "load_manifest",
    "load_pods",
    "run_merge",
    "validate_pod",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
