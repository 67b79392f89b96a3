"""Pod sources: manifest files, a manifest URL, the API server; and the merge of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.sources.errors import FieldError, ManifestError, error_line
from kubelet_trio.sources.files import FileSource, is_ignored
from kubelet_trio.sources.manifest import (
    MAX_MANIFEST_SIZE,
    IsKnown,
    Manifest,
    check_cluster_pod,
    default_pod,
    load_ephemeral,
    load_manifest,
    manifest_name,
    mark_seen,
    none_known,
)
from kubelet_trio.sources.manifest.decode import decode as decode_manifest
from kubelet_trio.sources.manifest.static import manifest_of
from kubelet_trio.sources.merge import merge, run_merge
from kubelet_trio.sources.runtime_classes import with_overhead
from kubelet_trio.sources.source import Desired, Source, SourceProblem, SourceSnapshot

if TYPE_CHECKING:
    from kubelet_trio.sources.adoption import (
        Adopter,
        AdoptingSource,
        Takeover,
        as_derived,
        load_adopted,
    )
    from kubelet_trio.sources.apiserver import ApiSource
    from kubelet_trio.sources.edit import Edit, edited
    from kubelet_trio.sources.http import HttpSource
    from kubelet_trio.sources.slice_files import SliceFiles
    from kubelet_trio.sources.validation import (
        syntax,
        validate_ephemeral,
        validate_object,
        validate_pod,
    )

ADOPTED_FILE = "adopted.json"  # below the root directory: see `adoption.store`

# Loaded on first use: for a node of a cluster, one that is taken over or has claims, and for an
# edit that is foreseen.
_DEFERRED = {
    "Adopter": "adoption",
    "AdoptingSource": "adoption",
    "Takeover": "adoption",
    "as_derived": "adoption",
    "load_adopted": "adoption",
    "ApiSource": "apiserver",
    "SliceFiles": "slice_files",
    "Edit": "edit",
    "HttpSource": "http",
    "edited": "edit",
    # For what another agent has written down.
    "syntax": "validation",
    "validate_ephemeral": "validation",
    "validate_object": "validation",
    "validate_pod": "validation",
}

__all__ = [
    "ADOPTED_FILE",
    "MAX_MANIFEST_SIZE",
    "Adopter",
    "AdoptingSource",
    "ApiSource",
    "Desired",
    "Edit",
    "FieldError",
    "FileSource",
    "HttpSource",
    "IsKnown",
    "Manifest",
    "ManifestError",
    "SliceFiles",
    "Source",
    "SourceProblem",
    "SourceSnapshot",
    "Takeover",
    "as_derived",
    "check_cluster_pod",
    "decode_manifest",
    "default_pod",
    "edited",
    "error_line",
    "is_ignored",
    "load_adopted",
    "load_ephemeral",
    "load_manifest",
    "manifest_name",
    "manifest_of",
    "mark_seen",
    "merge",
    "none_known",
    "run_merge",
    "syntax",
    "validate_ephemeral",
    "validate_object",
    "validate_pod",
    "with_overhead",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
