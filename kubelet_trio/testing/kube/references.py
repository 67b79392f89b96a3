"""The objects that a pod refers to, which the Node authorizer lets its node read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubelet_trio.testing.kube.store import Json

MIRROR = "kubernetes.io/config.mirror"

# The fields of secrets by the kind of an inline volume.
_VOLUME_SECRETS = (
    ("csi", "nodePublishSecretRef"),
    ("flexVolume", "secretRef"),
    ("iscsi", "secretRef"),
)


def references(pod: Json) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the objects that a pod refers to."""
    spec = pod.get("spec") or {}
    # Mirror pods have no service account: the admission plugin sets none, and refuses one.
    if MIRROR not in ((pod.get("metadata") or {}).get("annotations") or {}):
        yield "ServiceAccount", spec.get("serviceAccountName") or "default"
    for claim in spec.get("resourceClaims") or ():
        # Of a claim from a template this name is empty.
        yield "ResourceClaim", claim.get("resourceClaimName") or ""
    # Claims made from a template: their names are known only in the status.
    for claim in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        yield "ResourceClaim", claim.get("resourceClaimName") or ""
    if extended := (pod.get("status") or {}).get("extendedResourceClaimStatus"):
        yield "ResourceClaim", extended.get("resourceClaimName") or ""
    for secret in spec.get("imagePullSecrets") or ():
        yield "Secret", secret.get("name", "")
    for container in _containers(spec):
        for source in container.get("envFrom") or ():
            yield from _refs(source, secret="secretRef", config_map="configMapRef")
        for variable in container.get("env") or ():
            yield from _refs(
                variable.get("valueFrom") or {}, secret="secretKeyRef", config_map="configMapKeyRef"
            )
    for volume in spec.get("volumes") or ():
        if "secret" in volume:
            yield "Secret", volume["secret"].get("secretName", "")
        if share := volume.get("azureFile"):
            yield "Secret", share.get("secretName", "")
        for kind, field in _VOLUME_SECRETS:
            if secret := (volume.get(kind) or {}).get(field):
                yield "Secret", secret.get("name", "")
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"].get("claimName", "")
        if "ephemeral" in volume:
            # The claim of a generic ephemeral volume is named after pod and volume (KEP-1698).
            name = f"{(pod.get('metadata') or {}).get('name', '')}-{volume.get('name', '')}"
            yield "PersistentVolumeClaim", name
        yield from _refs(volume, secret="", config_map="configMap")
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield from _refs(source, secret="secret", config_map="configMap")


def volume_secrets(volume: Json) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of the secrets with which a node mounts a persistent volume."""
    # VisitPVSecretNames in pkg/api/v1/persistentvolume; the controller's are not a node's to see.
    spec = volume.get("spec") or {}
    claimed_from = (spec.get("claimRef") or {}).get("namespace", "")
    for kind in ("iscsi", "flexVolume"):
        if secret := (spec.get(kind) or {}).get("secretRef"):
            yield secret.get("namespace") or claimed_from, secret.get("name", "")
    if share := spec.get("azureFile"):
        yield share.get("secretNamespace") or claimed_from, share.get("secretName", "")
    csi = spec.get("csi") or {}
    for field in ("nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"):
        if secret := csi.get(field):
            yield secret.get("namespace", ""), secret.get("name", "")


def _containers(spec: Json) -> Iterator[Json]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def _refs(source: dict[str, Any], *, secret: str, config_map: str) -> Iterator[tuple[str, str]]:
    for field, kind in ((secret, "Secret"), (config_map, "ConfigMap")):
        if field and field in source:
            yield kind, source[field].get("name", "")
