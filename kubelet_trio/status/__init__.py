"""Pod statuses on their way out."""

from kubelet_trio.status.store import StatusListener, StatusStore

__all__ = ["StatusListener", "StatusStore"]
