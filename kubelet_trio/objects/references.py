"""Finds the objects that a pod refers to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from lightkube.models.core_v1 import (
    Container,
    PersistentVolume,
    PersistentVolumeSpec,
    Pod,
    Volume,
)

from kubelet_trio.model import PodKey, pod_containers, pod_key, spec
from kubelet_trio.objects.in_tree import inline_as_csi, persistent_as_csi
from kubelet_trio.objects.kinds import (
    ObjectKey,
    attachment_key,
    attachment_name,
    claim_key,
    config_map_key,
    csi_driver_key,
    runtime_class_key,
    secret_key,
)


def container_references(namespace: str, container: Container) -> Iterator[ObjectKey]:
    """Yield the objects that a container's environment is read from."""
    for source in container.envFrom or ():
        if source.configMapRef is not None:
            yield config_map_key(namespace, source.configMapRef.name)
        if source.secretRef is not None:
            yield secret_key(namespace, source.secretRef.name)
    for variable in container.env or ():
        value = variable.valueFrom
        if value is not None and value.configMapKeyRef is not None:
            yield config_map_key(namespace, value.configMapKeyRef.name)
        if value is not None and value.secretKeyRef is not None:
            yield secret_key(namespace, value.secretKeyRef.name)


def claim_name(pod: str, volume: Volume) -> str | None:
    """Return the name of a volume's claim, if it has one."""
    # The claim of an ephemeral volume is named by the API: <pod>-<volume>.
    if volume.ephemeral is not None:
        return f"{pod}-{volume.name}"
    return volume.persistentVolumeClaim.claimName if volume.persistentVolumeClaim else None


def volume_references(pod: PodKey, volume: Volume) -> Iterator[ObjectKey]:
    """Yield the objects that a volume is made from; a claim's volume is only known by the claim."""
    namespace, claim = pod.namespace, claim_name(pod.name, volume)
    if volume.configMap is not None:
        yield config_map_key(namespace, volume.configMap.name)
    if volume.secret is not None:
        yield secret_key(namespace, volume.secret.secretName)
    if claim is not None:
        yield claim_key(namespace, claim)
    if volume.csi is not None:
        yield csi_driver_key(volume.csi.driver)
        if volume.csi.nodePublishSecretRef is not None:
            yield secret_key(namespace, volume.csi.nodePublishSecretRef.name)
    for own in (volume.iscsi, volume.flexVolume):
        if own is not None and own.secretRef is not None and own.secretRef.name:
            yield secret_key(namespace, own.secretRef.name)
    # What cannot be translated refers to nothing; its mount reports the error.
    with suppress(ValueError):
        if (migrated := inline_as_csi(volume, namespace)) is not None:
            yield from persistent_references(migrated)
    for source in (volume.projected.sources or ()) if volume.projected is not None else ():
        if source.configMap is not None:
            yield config_map_key(namespace, source.configMap.name)
        if source.secret is not None:
            yield secret_key(namespace, source.secret.name)


def persistent_references(volume: PersistentVolume, node: str = "") -> Iterator[ObjectKey]:
    """Yield the objects that a node needs to mount a persistent volume; "": all but those that
    are for this node alone.
    """
    try:
        facts = persistent_as_csi(volume).spec or PersistentVolumeSpec()
    except ValueError:
        return  # it refers to nothing; its mount reports the error
    # The pod's namespace: its claim is in the same.
    namespace = (facts.claimRef.namespace if facts.claimRef is not None else None) or "default"
    for own in (facts.iscsi, facts.flexVolume):
        if own is not None and own.secretRef is not None and own.secretRef.name:
            yield secret_key(own.secretRef.namespace or namespace, own.secretRef.name)
    csi = facts.csi
    if csi is None:
        return
    yield csi_driver_key(csi.driver)
    if node:
        yield attachment_key(attachment_name(csi.driver, csi.volumeHandle, node))
    for secret in (csi.nodeStageSecretRef, csi.nodePublishSecretRef, csi.nodeExpandSecretRef):
        if secret is not None:
            yield secret_key(secret.namespace or "", secret.name)


def pod_references(pod: Pod) -> Iterator[ObjectKey]:
    """Yield every object that a pod refers to."""
    namespace = pod_key(pod).namespace
    if spec(pod).runtimeClassName:
        yield runtime_class_key(spec(pod).runtimeClassName)
    for secret in spec(pod).imagePullSecrets or ():
        if secret.name:  # the API server lets empty names pass: kubernetes/kubernetes#99454
            yield secret_key(namespace, secret.name)
    for container in pod_containers(pod):
        yield from container_references(namespace, container.spec)
    for volume in spec(pod).volumes or ():
        yield from volume_references(pod_key(pod), volume)
