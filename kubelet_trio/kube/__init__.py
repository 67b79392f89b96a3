"""The API server: client, reflector, credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.kube.api import (
    API_ERRORS,
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
    MergeKeyError,
    PatchError,
    apply_json_patch,
    apply_merge,
    apply_strategic,
    make_strategic,
)
from kubelet_trio.kube.reflector import Abilities, Delivery, Reflector
from kubelet_trio.kube.resources import ROUTES, Route, route_of

if TYPE_CHECKING:
    from kubelet_trio.kube.bootstrap import (
        ClientAccess,
        client_access,
        client_store,
        client_wanted,
        write_kubeconfig,
    )
    from kubelet_trio.kube.certificates import (
        SERVING_SIGNER,
        Certificate,
        CertificateError,
        CertificateStore,
        Wanted,
    )
    from kubelet_trio.kube.client import KubeClient, open_client
    from kubelet_trio.kube.credentials import AwaitedCertificate
    from kubelet_trio.kube.kubeconfig import (
        ClientConfig,
        KubeconfigError,
        in_cluster_config,
        load_kubeconfig,
    )
    from kubelet_trio.kube.request import Exchange
    from kubelet_trio.kube.rotation import Outcomes, Rotation

# What brings an HTTP client or YAML along is loaded by those who have a cluster.
_DEFERRED = {
    "AwaitedCertificate": "credentials",
    "SERVING_SIGNER": "certificates",
    "Certificate": "certificates",
    "CertificateError": "certificates",
    "CertificateStore": "certificates",
    "ClientAccess": "bootstrap",
    "Outcomes": "rotation",
    "Rotation": "rotation",
    "Wanted": "certificates",
    "client_access": "bootstrap",
    "client_store": "bootstrap",
    "client_wanted": "bootstrap",
    "write_kubeconfig": "bootstrap",
    "ClientConfig": "kubeconfig",
    "Exchange": "request",
    "KubeClient": "client",
    "KubeconfigError": "kubeconfig",
    "in_cluster_config": "kubeconfig",
    "load_kubeconfig": "kubeconfig",
    "open_client": "client",
}

__all__ = [
    "API_ERRORS",
    "ROUTES",
    "SERVING_SIGNER",
    "Abilities",
    "AlreadyExistsError",
    "AwaitedCertificate",
    "Bookmark",
    "Certificate",
    "CertificateError",
    "CertificateStore",
    "ClientAccess",
    "ClientConfig",
    "ConflictError",
    "Delivery",
    "Exchange",
    "GoneError",
    "KubeApi",
    "KubeClient",
    "KubeError",
    "KubeUnavailableError",
    "KubeconfigError",
    "Listing",
    "MergeKeyError",
    "NotFoundError",
    "Outcomes",
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
    "client_access",
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
    "write_kubeconfig",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
