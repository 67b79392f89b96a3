"""The API server: client, reflector, credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
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
from kubelet_trio.kube.limits import TokenBucket
from kubelet_trio.kube.patches import (
    PatchError,
    apply_json_patch,
    apply_merge,
    apply_strategic,
    make_strategic,
)
from kubelet_trio.kube.reflector import Abilities, Delivery, Reflector
from kubelet_trio.kube.resources import ROUTES, Route, route_of

if TYPE_CHECKING:
    from kubelet_trio.kube.bootstrap import bootstrap_kubeconfig, client_store, client_wanted
    from kubelet_trio.kube.certificates import (
        SERVING_SIGNER,
        CertificateError,
        CertificateStore,
        Rotation,
        Wanted,
    )
    from kubelet_trio.kube.client import KubeClient, open_client
    from kubelet_trio.kube.kubeconfig import (
        ClientConfig,
        KubeconfigError,
        in_cluster_config,
        load_kubeconfig,
    )

# What brings an HTTP client or YAML along is loaded by those who have a cluster.
_DEFERRED = {
    "SERVING_SIGNER": "certificates",
    "CertificateError": "certificates",
    "CertificateStore": "certificates",
    "Rotation": "certificates",
    "Wanted": "certificates",
    "bootstrap_kubeconfig": "bootstrap",
    "client_store": "bootstrap",
    "client_wanted": "bootstrap",
    "ClientConfig": "kubeconfig",
    "KubeClient": "client",
    "KubeconfigError": "kubeconfig",
    "in_cluster_config": "kubeconfig",
    "load_kubeconfig": "kubeconfig",
    "open_client": "client",
}

__all__ = [
    "ROUTES",
    "SERVING_SIGNER",
    "Abilities",
    "AlreadyExistsError",
    "Bookmark",
    "CertificateError",
    "CertificateStore",
    "ClientConfig",
    "ConflictError",
    "Delivery",
    "GoneError",
    "KubeApi",
    "KubeClient",
    "KubeError",
    "KubeUnavailableError",
    "KubeconfigError",
    "Listing",
    "NotFoundError",
    "PatchError",
    "PatchKind",
    "Reflector",
    "Rotation",
    "Route",
    "TokenBucket",
    "Wanted",
    "WatchEvent",
    "WatchEventKind",
    "apply_json_patch",
    "apply_merge",
    "apply_strategic",
    "bootstrap_kubeconfig",
    "client_store",
    "client_wanted",
    "error_of",
    "from_json",
    "in_cluster_config",
    "load_kubeconfig",
    "make_strategic",
    "open_client",
    "route_of",
    "to_json",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
