"""The image service of a fake runtime: CRI's calls on a `FakeImages`."""

from __future__ import annotations

from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.testing.calls import NO_DEADLINE, CallDesk
from kubelet_trio.testing.images import FakeImages


class FakeImageService:
    """The part of `FakeRuntime` that is about images.

    Attributes:
        images: the image store.
        image_fs: where it is kept, as ImageFsInfo tells; empty: nowhere that has a name.
        sandbox_image_name: what sandboxes are made from, as a verbose Status tells.
    """

    def __init__(self, desk: CallDesk) -> None:
        self._image_desk = desk
        self.images = FakeImages()
        self.image_fs = v1.ImageFsInfoResponse()
        self.sandbox_image_name = ""

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        async def effect() -> v1.Image | None:
            found = self.images.find(image.image)
            return None if found is None else self.images.image(found)

        return await self._image_desk.serve("ImageStatus", image.image, effect)

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        async def effect() -> str:
            return await self.images.pull(image.image, auth)

        return await self._image_desk.serve("PullImage", image.image, effect, limit=NO_DEADLINE)

    async def list_images(self) -> list[v1.Image]:
        async def effect() -> list[v1.Image]:
            return [self.images.image(name) for name in sorted(self.images.present)]

        return await self._image_desk.serve("ListImages", "", effect)

    async def remove_image(self, image: v1.ImageSpec) -> None:
        async def effect() -> None:
            found = self.images.find(image.image)
            if found in self.images.busy:
                raise RuntimeCallError("RemoveImage", f'image "{found}" is in use')
            if found is not None:
                self.images.present.discard(found)
                self.images.removed.append(found)

        await self._image_desk.serve("RemoveImage", image.image, effect)

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        async def effect() -> v1.ImageFsInfoResponse:
            return self.image_fs

        return await self._image_desk.serve("ImageFsInfo", "", effect)

    async def sandbox_image(self) -> str:
        async def effect() -> str:
            return self.sandbox_image_name

        return await self._image_desk.serve("Status", "", effect)
