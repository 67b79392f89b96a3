"""API objects that pods refer to: config maps, secrets, claims and volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.objects.errors import ObjectError, ObjectNotFoundError
from kubelet_trio.objects.in_tree import (
    IN_TREE_KINDS,
    inline_as_csi,
    is_in_tree,
    persistent_as_csi,
)
from kubelet_trio.objects.issued import (
    CredentialBundle,
    NoPodCertificates,
    NoTokens,
    NoTrustBundles,
    PodCertificates,
    TokenRequester,
    TrustBundles,
)
from kubelet_trio.objects.kinds import (
    API_VERSIONS,
    DEVICE_KINDS,
    DOCUMENT_KINDS,
    KINDS,
    ApiObject,
    ObjectKey,
    ServiceFacts,
    attachment_name,
    claim_key,
    config_map_content,
    config_map_key,
    csi_driver_key,
    csi_unique_name,
    object_key,
    runtime_class_key,
    secret_content,
    secret_key,
    volume_key,
)
from kubelet_trio.objects.local import LocalObjects
from kubelet_trio.objects.memory import NO_MEMORY, ClusterMemory, KnownToken, TokenRequest
from kubelet_trio.objects.references import (
    claim_name,
    container_references,
    persistent_references,
    pod_references,
    volume_references,
)
from kubelet_trio.objects.store import NO_OBJECTS, ObjectStore, ObjectView, read_objects

if TYPE_CHECKING:
    from kubelet_trio.objects.attachments import ClusterAttachments
    from kubelet_trio.objects.cluster import ChangeDetection, ClusterObjects, NodeObjects
    from kubelet_trio.objects.pod_certificates import ClusterPodCertificates
    from kubelet_trio.objects.services import ClusterServices
    from kubelet_trio.objects.tokens import ClusterAccounts, ClusterTokens
    from kubelet_trio.objects.trust_bundles import ClusterTrustBundles

# Loaded only on nodes of a cluster, certificates and bundles only with their feature gates.
_DEFERRED = {
    "ChangeDetection": "cluster",
    "ClusterAccounts": "tokens",
    "ClusterAttachments": "attachments",
    "ClusterObjects": "cluster",
    "ClusterPodCertificates": "pod_certificates",
    "ClusterServices": "services",
    "ClusterTokens": "tokens",
    "ClusterTrustBundles": "trust_bundles",
    "NodeObjects": "cluster",
}

__all__ = [
    "API_VERSIONS",
    "DEVICE_KINDS",
    "DOCUMENT_KINDS",
    "IN_TREE_KINDS",
    "KINDS",
    "NO_MEMORY",
    "NO_OBJECTS",
    "ApiObject",
    "ChangeDetection",
    "ClusterAccounts",
    "ClusterAttachments",
    "ClusterMemory",
    "ClusterObjects",
    "ClusterPodCertificates",
    "ClusterServices",
    "ClusterTokens",
    "ClusterTrustBundles",
    "CredentialBundle",
    "KnownToken",
    "LocalObjects",
    "NoPodCertificates",
    "NoTokens",
    "NoTrustBundles",
    "NodeObjects",
    "ObjectError",
    "ObjectKey",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObjectView",
    "PodCertificates",
    "ServiceFacts",
    "TokenRequest",
    "TokenRequester",
    "TrustBundles",
    "attachment_name",
    "claim_key",
    "claim_name",
    "config_map_content",
    "config_map_key",
    "container_references",
    "csi_driver_key",
    "csi_unique_name",
    "inline_as_csi",
    "is_in_tree",
    "object_key",
    "persistent_as_csi",
    "persistent_references",
    "pod_references",
    "read_objects",
    "runtime_class_key",
    "secret_content",
    "secret_key",
    "volume_key",
    "volume_references",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
