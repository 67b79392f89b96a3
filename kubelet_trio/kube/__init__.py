"""The API server: client, reflector, patches, credentials and certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.kube.api import (
    Bookmark,
    KubeApi,
    ObjectList,
    PatchKind,
    WatchEvent,
    WatchEventKind,
    is_newer,
)
from kubelet_trio.kube.codec import from_json, to_json
from kubelet_trio.kube.errors import (
    API_ERRORS,
    AlreadyExistsError,
    CertificateError,
    ConflictError,
    CredentialsError,
    GoneError,
    KubeconfigError,
    KubeError,
    KubeTimeoutError,
    KubeUnavailableError,
    MergeKeyError,
    NotFoundError,
    PatchError,
)
from kubelet_trio.kube.limits import TokenBucket
from kubelet_trio.kube.patches import apply_json_patch, apply_merge, apply_strategic, make_strategic
from kubelet_trio.kube.reflector import Reflector, ServerFeatures
from kubelet_trio.kube.resources import ROUTES, Resource, route_of

if TYPE_CHECKING:
    from kubelet_trio.kube.bootstrap import (
        ClientAccess,
        client_access,
        client_request,
        client_store,
        write_kubeconfig,
    )
    from kubelet_trio.kube.certificates import (
        SERVING_SIGNER,
        Certificate,
        CertificateRequest,
        CertificateStore,
        ProvenKey,
        proven_key,
    )
    from kubelet_trio.kube.client import KubeClient, open_client
    from kubelet_trio.kube.credentials import AwaitedCertificate
    from kubelet_trio.kube.kubeconfig import ClientConfig, load_kubeconfig
    from kubelet_trio.kube.request import RequestAttempt
    from kubelet_trio.kube.rotation import RenewalHooks, Rotation

# An HTTP client and YAML are loaded only on nodes of a cluster.
_DEFERRED = {
    "AwaitedCertificate": "credentials",
    "Certificate": "certificates",
    "CertificateRequest": "certificates",
    "CertificateStore": "certificates",
    "ClientAccess": "bootstrap",
    "ClientConfig": "kubeconfig",
    "KubeClient": "client",
    "ProvenKey": "certificates",
    "RenewalHooks": "rotation",
    "RequestAttempt": "request",
    "Rotation": "rotation",
    "SERVING_SIGNER": "certificates",
    "client_access": "bootstrap",
    "client_request": "bootstrap",
    "client_store": "bootstrap",
    "load_kubeconfig": "kubeconfig",
    "open_client": "client",
    "proven_key": "certificates",
    "write_kubeconfig": "bootstrap",
}

__all__ = [
    "API_ERRORS",
    "ROUTES",
    "SERVING_SIGNER",
    "AlreadyExistsError",
    "AwaitedCertificate",
    "Bookmark",
    "Certificate",
    "CertificateError",
    "CertificateRequest",
    "CertificateStore",
    "ClientAccess",
    "ClientConfig",
    "ConflictError",
    "CredentialsError",
    "GoneError",
    "KubeApi",
    "KubeClient",
    "KubeError",
    "KubeTimeoutError",
    "KubeUnavailableError",
    "KubeconfigError",
    "MergeKeyError",
    "NotFoundError",
    "ObjectList",
    "PatchError",
    "PatchKind",
    "ProvenKey",
    "Reflector",
    "RenewalHooks",
    "RequestAttempt",
    "Resource",
    "Rotation",
    "ServerFeatures",
    "TokenBucket",
    "WatchEvent",
    "WatchEventKind",
    "apply_json_patch",
    "apply_merge",
    "apply_strategic",
    "client_access",
    "client_request",
    "client_store",
    "from_json",
    "is_newer",
    "load_kubeconfig",
    "make_strategic",
    "open_client",
    "proven_key",
    "route_of",
    "to_json",
    "write_kubeconfig",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
