"""The images of a fake runtime: the store, and CRI's image service on it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import trio

from kubelet_trio.cri import ImagePullError, RuntimeCallError, RuntimeObjectNotFoundError, v1
from kubelet_trio.testing.calls import NO_DEADLINE, CallDesk


def image_id(name: str) -> str:
    """Return the id of an image of this name, the same in every fake runtime."""
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


@dataclass(eq=False, slots=True)
class FakeImages:
    """Images by name, without the tag `latest` that the agent adds to a name that has none.

    Pulls fail for a name with the word `missing`, and for those in `broken`. A pull takes
    `pull_takes` seconds, or the name's entry in `pull_times`.
    """

    present: set[str] = field(default_factory=set)
    broken: dict[str, ImagePullError] = field(default_factory=dict)
    pull_takes: float = 0.0
    pull_times: dict[str, float] = field(default_factory=dict)
    users: dict[str, tuple[int | None, str]] = field(default_factory=dict)  # uid, or name
    pulls_in_flight: int = 0
    max_pulls_in_flight: int = 0
    pulled: list[str] = field(default_factory=list)  # pulls that succeeded, in order
    logins: dict[str, str] = field(default_factory=dict)  # the only user allowed to pull a name
    tried: list[tuple[str, str]] = field(default_factory=list)  # name and user of each pull
    sizes: dict[str, int] = field(default_factory=dict)  # bytes; default 1 MB
    pinned: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)  # the runtime refuses to remove them
    removed: list[str] = field(default_factory=list)  # in order

    def find(self, reference: str) -> str | None:
        """Return the name of a present image, by its name or id."""
        # CRI's ImageSpec names an image in either way.
        if reference in self.present:
            return reference
        return next((name for name in sorted(self.present) if image_id(name) == reference), None)

    def needed(self, config: v1.ContainerConfig) -> str:
        """Return the id of the image that a new container runs.

        Raises `RuntimeObjectNotFoundError` if this image, or one that it mounts, is not present.
        """
        for mount in config.mounts:
            if mount.image is not None:
                self._resolved(mount.image)
        return self.image(self._resolved(config.image or v1.ImageSpec())).id

    def _resolved(self, image: v1.ImageSpec) -> str:
        found = self.find(image.image)
        if found is None:
            raise RuntimeObjectNotFoundError(
                "CreateContainer", f'failed to resolve image "{image.image}"'
            )
        return found

    def image(self, name: str) -> v1.Image:
        """Describe a present image."""
        uid, username = self.users.get(name, (None, ""))
        return v1.Image(
            id=image_id(name),
            repo_tags=[name],
            repo_digests=[f"{name.split(':')[0]}@{image_id(name)}"],
            size=self.sizes.get(name, 1_000_000),
            pinned=name in self.pinned,
            # CRI: a user is either a number or a name; runAsNonRoot refuses names.
            uid=None if uid is None else v1.Int64Value(value=uid),
            username=username,
            spec=v1.ImageSpec(image=name),
        )

    async def pull(self, name: str, auth: v1.AuthConfig | None = None) -> str:
        """Pull an image; return its id. Raises `ImagePullError`."""
        user = auth.username if auth is not None else ""
        self.tried.append((name, user))
        self.pulls_in_flight += 1
        self.max_pulls_in_flight = max(self.max_pulls_in_flight, self.pulls_in_flight)
        try:
            await trio.sleep(self.pull_times.get(name, self.pull_takes))
        finally:
            self.pulls_in_flight -= 1
        if name in self.broken:
            raise self.broken[name]
        if user != self.logins.get(name, user):
            raise ImagePullError("PullImage", f'failed to pull "{name}": 401 Unauthorized')
        if "missing" in name:
            raise ImagePullError(
                "PullImage", f'failed to pull and unpack image "{name}": not found'
            )
        self.present.add(name)
        self.pulled.append(name)
        return image_id(name)


class FakeImageService:
    """The part of `FakeRuntime` for images.

    Attributes:
        images: the image store.
        image_fs: the response to ImageFsInfo; empty by default.
        sandbox_image_name: the image of sandboxes, as a verbose Status reports it.
    """

    def __init__(self, desk: CallDesk) -> None:
        self._image_desk = desk
        self.images = FakeImages()
        self.image_fs = v1.ImageFsInfoResponse()
        self.sandbox_image_name = ""

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        name = _short(image)

        async def effect() -> v1.Image | None:
            found = self.images.find(name)
            return None if found is None else self.images.image(found)

        return await self._image_desk.serve("ImageStatus", name, effect)

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        name = _short(image)

        async def effect() -> str:
            return await self.images.pull(name, auth)

        # As in the Go kubelet (remote_image.go): a large image may take as long as it needs.
        return await self._image_desk.serve("PullImage", name, effect, limit=NO_DEADLINE)

    async def list_images(self) -> list[v1.Image]:
        async def effect() -> list[v1.Image]:
            return [self.images.image(name) for name in sorted(self.images.present)]

        return await self._image_desk.serve("ListImages", "", effect)

    async def remove_image(self, image: v1.ImageSpec) -> None:
        async def effect() -> None:
            # CRI: to remove an image that does not exist is no error.
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


def _short(image: v1.ImageSpec) -> str:
    return image.image.removesuffix(":latest")
