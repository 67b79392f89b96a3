"""API objects that pods refer to: config maps, secrets, claims and volumes."""

from kubelet_trio.objects.cluster import ChangeDetection, ClusterObjects, NodeObjects
from kubelet_trio.objects.cluster_accounts import ClusterAccounts
from kubelet_trio.objects.cluster_tokens import ClusterTokens
from kubelet_trio.objects.content import config_map_content, secret_content
from kubelet_trio.objects.errors import ObjectError, ObjectNotFoundError
from kubelet_trio.objects.local import LocalObjects
from kubelet_trio.objects.memory import NO_MEMORY, ClusterMemory, KnownToken
from kubelet_trio.objects.references import (
    claim_name,
    container_references,
    pod_references,
    volume_references,
)
from kubelet_trio.objects.services import (
    ClusterServices,
    ServiceFacts,
    ServicePort,
    service_facts,
)
from kubelet_trio.objects.store import ObjectStore
from kubelet_trio.objects.tokens import NoTokens, TokenRequest, TokenRequester
from kubelet_trio.objects.types import (
    API_VERSIONS,
    KINDS,
    ApiObject,
    ObjectKey,
    claim_key,
    config_map_key,
    object_key,
    runtime_class_key,
    secret_key,
    volume_key,
)
from kubelet_trio.objects.view import NO_OBJECTS, ObjectView, read_objects

__all__ = [
    "API_VERSIONS",
    "KINDS",
    "NO_MEMORY",
    "NO_OBJECTS",
    "ApiObject",
    "ChangeDetection",
    "ClusterAccounts",
    "ClusterMemory",
    "ClusterObjects",
    "ClusterServices",
    "ClusterTokens",
    "KnownToken",
    "LocalObjects",
    "NoTokens",
    "NodeObjects",
    "ObjectError",
    "ObjectKey",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObjectView",
    "ServiceFacts",
    "ServicePort",
    "TokenRequest",
    "TokenRequester",
    "claim_key",
    "claim_name",
    "config_map_content",
    "config_map_key",
    "container_references",
    "object_key",
    "pod_references",
    "read_objects",
    "runtime_class_key",
    "secret_content",
    "secret_key",
    "service_facts",
    "volume_key",
    "volume_references",
]
