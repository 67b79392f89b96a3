"""An image as a container asks for it, and whether its name is valid."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod

from kubelet_trio.credentials import Puller, untagged
from kubelet_trio.cri import v1
from kubelet_trio.model import PodContainer, PodUid, metadata, pod_key, pod_uid, spec

# The grammar of regexp.go in github.com/distribution/reference. re.ASCII, as Go's \w.
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]+)?|\[[0-9a-fA-F:]+\](?::[0-9]+)?)"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?(?P<path>{_PART}(?:/{_PART})*)(?::\w[\w.-]{{0,127}})?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?",
    re.ASCII,
)
_HEX = re.compile(r"[0-9a-f]{64}")
_LONGEST = 255  # characters of a repository's path
_DOCKER_HUB = "docker.io"
_DIGESTS = {"sha256": 64, "sha384": 96, "sha512": 128}  # hexadecimal digits by algorithm


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An image that a container runs or mounts, and its pull policy."""

    pod: Pod
    container: PodContainer
    policy: str
    image: str  # as the pod names it
    spec: v1.ImageSpec  # as the runtime is asked for it
    field_path: str  # of the pod, for the events of pulls

    @property
    def puller(self) -> Puller:
        account = spec(self.pod).serviceAccountName or ""
        return Puller(pod_key(self.pod), pod_uid(self.pod), account)

    def mounted(self, ref: str) -> v1.ImageSpec:
        """Return the image as a mount names it; `ref` is the runtime's name of it."""
        # As getImageVolumes, whose runtime_handler is empty without RuntimeClassInImageCriApi.
        return v1.ImageSpec(
            image=ref, user_specified_image=self.image, annotations=self.spec.annotations
        )

    @property
    def back_off_key(self) -> tuple[PodUid, str]:
        return pod_uid(self.pod), self.image


def container_request(pod: Pod, container: PodContainer) -> ImageRequest:
    """Return the request for the image that a container runs."""
    image = container.spec.image or ""
    policy = container.spec.imagePullPolicy or "IfNotPresent"
    return ImageRequest(pod, container, policy, image, _spec(pod, image), container.field_path)


def volume_requests(pod: Pod, container: PodContainer) -> dict[str, ImageRequest]:
    """Return the requests for the images that a container mounts as volumes (KEP-4639).

    They are by the volumes' names, in the order of the last mount of each.
    """
    sources = {volume.name: volume.image for volume in spec(pod).volumes or ()}
    requests: dict[str, ImageRequest] = {}
    for mount in container.spec.volumeMounts or ():
        if (source := sources.get(mount.name)) is not None:
            requests.pop(mount.name, None)
            image, policy = source.reference or "", source.pullPolicy or "IfNotPresent"
            # Upstream's getImageVolumes reports pulls for the pod as a whole.
            requests[mount.name] = ImageRequest(
                pod, container, policy, image, _spec(pod, image), field_path=""
            )
    return requests


def _spec(pod: Pod, image: str) -> v1.ImageSpec:
    # With the pod's annotations, as EnsureImageExists: some runtimes choose by them how to pull.
    return v1.ImageSpec(image=tagged(image), annotations=dict(metadata(pod).annotations or {}))


def tagged(image: str) -> str:
    """Return an image's name with the tag `latest` if it has neither tag nor digest."""
    # As applyDefaultImageTag. Runtimes take a name of hexadecimal digits alone, such as `cafe`, for
    # the beginning of an image's id.
    return f"{image}:latest" if image and untagged(image) == image else image


def reference_problem(image: str) -> str | None:
    """Return why an image's name is invalid, None if it is valid.

    Rules and texts are those of ParseNormalizedNamed in github.com/distribution/reference.
    """
    # 64 hexadecimal digits are an image's id.
    if _HEX.fullmatch(image):
        return f"invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
    host, rest = _split(image)
    name = rest.partition(":")[0]
    if name.lower() != name:
        return f"invalid reference format: repository name ({name}) must be lowercase"
    found = _REFERENCE.fullmatch(f"{host}/{rest}")
    if found is None:
        return "invalid reference format"
    if len(found["path"]) > _LONGEST:
        return f"repository name must not be more than {_LONGEST} characters"
    return _digest_problem(found["digest"]) if found["digest"] else None


def _split(image: str) -> tuple[str, str]:
    """Return the registry and the rest; a name without a registry is Docker Hub's."""
    host, slash, rest = image.partition("/")
    # As splitDockerDomain: a path has no capitals, so a first part with one is a registry.
    is_host = slash and ({".", ":"} & set(host) or host == "localhost" or host.lower() != host)
    if not is_host:
        host, rest = _DOCKER_HUB, image
    if host == "index.docker.io":
        host = _DOCKER_HUB
    if host == _DOCKER_HUB and "/" not in rest:
        rest = f"library/{rest}"
    return host, rest


def _digest_problem(digest: str) -> str | None:
    # Rules and texts of github.com/opencontainers/go-digest.
    algorithm, _, encoded = digest.partition(":")
    if algorithm not in _DIGESTS:
        return "unsupported digest algorithm"
    if len(encoded) != _DIGESTS[algorithm]:
        return "invalid checksum digest length"
    return None if encoded == encoded.lower() else "invalid checksum digest format"
