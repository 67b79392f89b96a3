"""Source `file`: the manifest directory, scanned, read and watched."""

from kubelet_trio.sources.files.scan import WatchPoints
from kubelet_trio.sources.files.source import FileSource
from kubelet_trio.sources.files.watch import FileChange, Watcher

__all__ = ["FileChange", "FileSource", "WatchPoints", "Watcher"]
