"""Find the digests of the images that one pod's containers mount (KEP-5365)."""

from __future__ import annotations

import os
from collections.abc import Mapping

import trio
from lightkube.models.core_v1 import PodStatus

from kubelet_trio.cri import Runtime, RuntimeCallError, v1
from kubelet_trio.model import ContainerId, ImageMount, RuntimePod, get_logger

log = get_logger()

_LONGEST = 256  # characters of an imageRef that the API server takes
_PATIENCE = 5.0  # seconds that a status waits for the runtime


class ImageVolumes:
    """Knows each container's digests, by the path of the mount.

    Those that the runtime does not tell with the container are asked for once: a tag may name
    another image later, and the image may be gone after its container.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[ContainerId, dict[str, str]] = {}
        self._failed: set[tuple[ContainerId, str]] = set()  # these were logged

    @property
    def refs(self) -> Mapping[ContainerId, Mapping[str, str]]:
        """The digests that were found last."""
        return self._known

    async def find(self, observed: RuntimePod, runtime_name: str, before: PodStatus | None) -> None:
        """Find the digests of all containers that the runtime has.

        Args:
            observed: the containers.
            runtime_name: prefix of a status' containerID.
            before: the last status on record, which an earlier agent may have published.
        """
        there = {record.id for record in observed.containers}
        self._known = {i: refs for i, refs in self._known.items() if i in there}
        self._failed = {(i, path) for i, path in self._failed if i in there}
        for record in observed.containers:
            if not record.image_mounts:
                continue
            known = self._known.get(record.id)
            if known is None:
                known = self._known[record.id] = _published(f"{runtime_name}://{record.id}", before)
            for mount in record.image_mounts:
                if mount.ref or mount.path not in known:
                    ref = mount.ref or await self._ask(record.id, mount)
                    if 0 < len(ref) <= _LONGEST:
                        known[mount.path] = ref

    async def _ask(self, container_id: ContainerId, mount: ImageMount) -> str:
        """Return the digest of a mounted image; "" if the runtime does not know the image."""
        image, problem = None, f"no answer within {_PATIENCE:g}s"
        try:
            with trio.move_on_after(_PATIENCE):
                image = await self._runtime.image_status(v1.ImageSpec(image=mount.image))
                problem = "image was not found"
        except RuntimeCallError as exc:
            problem = str(exc)
        if image is None:
            if (container_id, mount.path) not in self._failed:
                self._failed.add((container_id, mount.path))
                log.warning(
                    "status.image_volume_unknown",
                    containerID=container_id,
                    path=mount.path,
                    image=mount.image,
                    error=problem,
                )
            return ""
        # As in a container's imageID: the digest by which the registry has the image.
        return image.repo_digests[0] if image.repo_digests else image.id


def _published(container_id: str, before: PodStatus | None) -> dict[str, str]:
    """Return the digests in a status, by the path of the mount."""
    if before is None:
        return {}
    statuses = (
        *(before.initContainerStatuses or ()),
        *(before.containerStatuses or ()),
        *(before.ephemeralContainerStatuses or ()),
    )
    return {
        os.path.join("/", mount.mountPath): mount.volumeStatus.image.imageRef
        for status in statuses
        if status.containerID == container_id
        for mount in status.volumeMounts or ()
        if mount.volumeStatus is not None and mount.volumeStatus.image is not None
    }
