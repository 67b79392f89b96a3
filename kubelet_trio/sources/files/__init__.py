"""Source `file`: the manifest directory, scanned, read and watched."""

from kubelet_trio.sources.files.scan import is_ignored
from kubelet_trio.sources.files.source import FileSource

__all__ = ["FileSource", "is_ignored"]
