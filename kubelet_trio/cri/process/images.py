"""The images of a runtime that has none: every name is there, and means the host's own files."""

from __future__ import annotations

import trio

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process.entries import HOST_FILES, image_id


class HostImages:
    """The image service of `ProcessRuntime`."""

    def __init__(self, user: int) -> None:
        self._user = user  # whom every image names

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        """Return an image for every name: the host, with our own user as the one it names."""
        await trio.lowlevel.checkpoint()
        return v1.Image(
            id=image_id(image.image),
            repo_tags=[image.image.removeprefix(HOST_FILES)],
            size=1,  # CRI wants one
            uid=v1.Int64Value(value=self._user),
            spec=v1.ImageSpec(image=image.image),
        )

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        await trio.lowlevel.checkpoint()
        return image_id(image.image)

    async def list_images(self) -> list[v1.Image]:
        """Return none: nothing is kept for any name."""
        await trio.lowlevel.checkpoint()
        return []

    async def remove_image(self, image: v1.ImageSpec) -> None:
        """Do nothing: the host's files are nobody's to remove."""
        await trio.lowlevel.checkpoint()

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Return no file system: there is none of images."""
        await trio.lowlevel.checkpoint()
        return v1.ImageFsInfoResponse()

    async def sandbox_image(self) -> str:
        await trio.lowlevel.checkpoint()
        return ""
