"""The API server: client, reflector, credentials."""

from kubelet_trio.kube.api import (
    AlreadyExistsError,
    Bookmark,
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
    error_of,
)
from kubelet_trio.kube.codec import from_json, to_json
from kubelet_trio.kube.follow import follow
from kubelet_trio.kube.patches import (
    PatchError,
    apply_json_patch,
    apply_merge,
    apply_strategic,
    make_strategic,
)
from kubelet_trio.kube.resources import ROUTES, Route, route_of

__all__ = [
    "ROUTES",
    "AlreadyExistsError",
    "Bookmark",
    "ConflictError",
    "GoneError",
    "KubeApi",
    "KubeError",
    "KubeUnavailableError",
    "Listing",
    "NotFoundError",
    "PatchError",
    "PatchKind",
    "Route",
    "WatchEvent",
    "WatchEventKind",
    "apply_json_patch",
    "apply_merge",
    "apply_strategic",
    "error_of",
    "follow",
    "from_json",
    "make_strategic",
    "route_of",
    "to_json",
]
