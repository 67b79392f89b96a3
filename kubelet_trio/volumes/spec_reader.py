"""Reads the objects, claims and credentials that a pod's volumes are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lightkube.models.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod, Volume

from kubelet_trio.containers import PodFacts
from kubelet_trio.model import pod_key, pod_uid
from kubelet_trio.objects import (
    ObjectError,
    ObjectStore,
    ObjectView,
    is_in_tree,
    persistent_references,
    read_objects,
    volume_key,
    volume_references,
)
from kubelet_trio.volumes.errors import set_up_error, unprocessed_error
from kubelet_trio.volumes.issuers import Issuers
from kubelet_trio.volumes.spec import VolumeSpec, is_claimed, volume_spec


@dataclass(frozen=True, slots=True)
class SpecReader:
    """Makes the specs of a pod's volumes."""

    objects: ObjectStore
    issuers: Issuers
    facts: PodFacts
    is_supported: Callable[[str], bool]  # whether a kind of volume has a plugin

    async def read(self, pod: Pod, volumes: Iterable[Volume]) -> list[VolumeSpec]:
        """Return the specs of volumes, in their order. Raises `VolumeError`."""
        volumes = list(volumes)
        objects = await self._objects(pod, volumes)
        specs: list[VolumeSpec] = []
        unclaimed: dict[str, str] = {}
        for volume in volumes:
            try:
                spec = volume_spec(pod, volume, self.facts, objects)
                spec = await self.issuers.complete(spec)
            except (ObjectError, ValueError) as exc:
                if not is_claimed(volume) and not is_in_tree(volume):
                    raise set_up_error(volume.name, exc) from exc
                unclaimed[volume.name] = str(exc)
                continue
            if not self.is_supported(spec.kind):
                raise set_up_error(volume.name, f"volumes of type {spec.kind} are not supported")
            specs.append(spec)
        if unclaimed:
            raise unprocessed_error(unclaimed)
        return specs

    async def _objects(self, pod: Pod, volumes: Iterable[Volume]) -> ObjectView:
        keys = [key for volume in volumes for key in volume_references(pod_key(pod), volume)]
        found = dict((await read_objects(self.objects, keys, pod_uid(pod))).found)
        # A second read, because only a claim names its volume; a third one, because only the
        # volume names its driver and secrets.
        claims = [value for value in found.values() if isinstance(value, PersistentVolumeClaim)]
        bound = [volume_key(claim.spec.volumeName) for claim in claims if claim.spec is not None]
        if bound:
            self.objects.hold(pod_uid(pod), bound)
            found |= (await read_objects(self.objects, bound, pod_uid(pod))).found
        behind = [value for value in found.values() if isinstance(value, PersistentVolume)]
        further = [key for volume in behind for key in persistent_references(volume)]
        if further:
            self.objects.hold(pod_uid(pod), further)
            found |= (await read_objects(self.objects, further, pod_uid(pod))).found
        return ObjectView(found)
