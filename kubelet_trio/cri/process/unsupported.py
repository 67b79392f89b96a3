"""The parts of CRI that host processes do not have: images, and URLs for streams."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kubelet_trio.cri.errors import UnsupportedCallError
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process.registry import HOST_FILES, image_id
from kubelet_trio.cri.protocol import LocalStreams
from kubelet_trio.model import ContainerId, SandboxId


class HostImages:
    """An image service without images: every name exists and means the host's own files."""

    def __init__(self, user: int) -> None:
        self._user = user  # the user that every image names

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        """Return an image for every name."""
        await trio.lowlevel.checkpoint()
        return v1.Image(
            id=image_id(image.image),
            repo_tags=[image.image.removeprefix(HOST_FILES)],
            size=1,  # the Go kubelet's CRI client refuses an image of size 0
            uid=v1.Int64Value(value=self._user),
            spec=v1.ImageSpec(image=image.image),
        )

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        await trio.lowlevel.checkpoint()
        return image_id(image.image)

    async def list_images(self) -> list[v1.Image]:
        """Return an empty list: nothing is stored for any name."""
        await trio.lowlevel.checkpoint()
        return []

    async def remove_image(self, image: v1.ImageSpec) -> None:
        """Do nothing: the host's files stay."""
        await trio.lowlevel.checkpoint()

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Return no file system: no image is stored."""
        await trio.lowlevel.checkpoint()
        return v1.ImageFsInfoResponse()

    async def sandbox_image(self) -> str:
        await trio.lowlevel.checkpoint()
        return ""


class NoStreamUrls:
    """`StreamingService` without URLs: the runtime hands out the streams themselves."""

    @property
    def local_streams(self) -> LocalStreams | None:
        return None

    async def exec_url(self, request: v1.ExecRequest) -> str:
        return await _raise_unsupported("Exec")

    async def attach_url(self, request: v1.AttachRequest) -> str:
        return await _raise_unsupported("Attach")

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        return await _raise_unsupported("PortForward")

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        await _raise_unsupported("CheckpointContainer")


class NoMetrics:
    """A runtime without metrics of its own: cgroups and /proc have everything of processes."""

    async def list_metric_descriptors(self) -> list[v1.MetricDescriptor]:
        """Raise `UnsupportedCallError`."""
        await trio.lowlevel.checkpoint()
        raise UnsupportedCallError("ListMetricDescriptors", _NO_METRICS)

    async def list_pod_sandbox_metrics(self) -> list[v1.PodSandboxMetrics]:
        """Raise `UnsupportedCallError`."""
        await trio.lowlevel.checkpoint()
        raise UnsupportedCallError("ListPodSandboxMetrics", _NO_METRICS)


_NO_METRICS = "the process runtime has no metrics of its own"


async def _raise_unsupported(call: str) -> str:
    await trio.lowlevel.checkpoint()
    raise UnsupportedCallError(call, "the process runtime serves no streams", code="Unimplemented")
