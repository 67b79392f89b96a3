"""Pod statuses on their way out."""

from kubelet_trio.status.store import StatusStore

__all__ = ["StatusStore"]
