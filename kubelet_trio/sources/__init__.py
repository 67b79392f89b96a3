"""Where pods come from: manifest files, a manifest URL, and the merge of all of it."""

from kubelet_trio.sources._errors import FieldError, ManifestError
from kubelet_trio.sources.defaults import default_pod
from kubelet_trio.sources.file import FileSource
from kubelet_trio.sources.http import HttpSource
from kubelet_trio.sources.load import Manifest, load_manifest, load_pods
from kubelet_trio.sources.merge import run_merge
from kubelet_trio.sources.scan import WatchPoints
from kubelet_trio.sources.types import Desired, Source, SourceProblem, SourceSnapshot
from kubelet_trio.sources.validate import validate_pod
from kubelet_trio.sources.watch import Change, Watcher

__all__ = [
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
    "default_pod",
    "load_manifest",
    "load_pods",
    "run_merge",
    "validate_pod",
]
