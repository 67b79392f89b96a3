"""The API server: client, reflector, credentials."""

from kubelet_trio.kube.api import (
    AlreadyExistsError,
    ConflictError,
    GoneError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    Listing,
    NotFoundError,
    PatchKind,
    WatchEvent,
    WatchEventKind,
)

__all__ = [
    "AlreadyExistsError",
    "ConflictError",
    "GoneError",
    "KubeApi",
    "KubeError",
    "KubeUnavailableError",
    "Listing",
    "NotFoundError",
    "PatchKind",
    "WatchEvent",
    "WatchEventKind",
]
