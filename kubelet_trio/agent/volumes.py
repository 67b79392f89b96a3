"""Finds the names in the pods' specs of the volumes on disk.

On disk a claim's volume has the name of its persistent volume. Only the claim links it to the
pod's spec, so claims are read, once for each volume of a pod: a binding never changes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import trio
from lightkube.models.core_v1 import PersistentVolumeClaim, Pod, Volume

from kubelet_trio.model import PodUid, get_logger, pod_key, pod_uid
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import ObjectError, ObjectStore, claim_key, claim_name, inline_as_csi

log = get_logger()

_PATIENCE = 2.0  # seconds for the claims of all pods: an API server may not answer


@dataclass(slots=True)
class VolumeNames:
    """Finds the name in the pod's spec of each volume on disk."""

    objects: ObjectStore
    _claimed: dict[tuple[PodUid, str], str] = field(default_factory=dict)  # to persistent volumes

    async def of_pod(self, pod: Pod) -> dict[str, str]:
        """Return the names in the spec by those on disk, without claims that cannot be read."""
        uid, key = pod_uid(pod), pod_key(pod)
        names: dict[str, str] = {}
        for volume in pod_spec(pod).volumes or ():
            claim = claim_name(key.name, volume)
            if claim is None:
                names |= dict.fromkeys(_inline_names(volume, key.namespace), volume.name)
                continue
            bound = self._claimed.get((uid, claim)) or await self._read(uid, key.namespace, claim)
            if bound:
                self._claimed[uid, claim] = bound
                names[bound] = volume.name
        return names

    def keep(self, pods: Container[PodUid]) -> None:
        """Forget all pods but these."""
        self._claimed = {key: name for key, name in self._claimed.items() if key[0] in pods}

    async def of_pods(self, pods: Mapping[PodUid, Pod]) -> dict[PodUid, Mapping[str, str]]:
        """Do the same for several pods, within 2 s; forget all others."""
        self.keep(pods)
        found: dict[PodUid, Mapping[str, str]] = {}
        with trio.move_on_after(_PATIENCE):
            for uid, pod in pods.items():
                found[uid] = await self.of_pod(pod)
        return found

    async def _read(self, uid: PodUid, namespace: str, claim: str) -> str:
        try:
            value = await self.objects.get(claim_key(namespace, claim), uid)
        except ObjectError as exc:
            log.debug("volumes.claim_unread", claim=f"{namespace}/{claim}", error=str(exc))
            return ""
        assert isinstance(value, PersistentVolumeClaim)
        return (value.spec.volumeName if value.spec is not None else None) or ""


def _inline_names(volume: Volume, namespace: str) -> set[str]:
    """Return what an inline volume is called on disk: a cloud's by its record and directory."""
    try:
        migrated = inline_as_csi(volume, namespace)
    except ValueError:  # it is never mounted
        return {volume.name}
    name = migrated.metadata.name if migrated is not None and migrated.metadata else None
    return {name, name.replace("/", "~")} if name else {volume.name}
