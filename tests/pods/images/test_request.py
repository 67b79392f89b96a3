"""Names of images, and what is wrong with them in the distribution's words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kubelet_trio.cri import v1
from kubelet_trio.model import pod_containers
from kubelet_trio.pods.images.request import container_request, reference_problem
from tests.pods.make import container, pod

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    "image",
    [
        "busybox",
        "busybox:1.36",
        "library/busybox",
        "localhost/kubelet-trio/busybox:1",
        "localhost:5000/a/b:c",
        "registry.example:443/team/app@" + DIGEST,
        "[fd00::1]:5000/app",
        "UPPER.example/app",  # a registry's name may be written so
        "a__b-c.d/e---f:Tag_1.2-3",
        "index.docker.io/busybox",
    ],
)
def test_a_name_is_taken(image: str) -> None:
    assert reference_problem(image) is None


LOWER = "invalid reference format: repository name ({}) must be lowercase"


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("", "invalid reference format"),
        ("Not A Name", LOWER.format("library/Not A Name")),
        ("Busybox:1", LOWER.format("library/Busybox")),
        ("quay.io/Team/app:1", LOWER.format("Team/app")),
        ("not a name", "invalid reference format"),
        ("busybox:", "invalid reference format"),
        ("busybox:" + "x" * 129, "invalid reference format"),
        ("-x/busybox", "invalid reference format"),
        ("a//b", "invalid reference format"),
        ("busybox@sha256:abc", "invalid reference format"),
        ("busybox@" + DIGEST[:-1], "invalid checksum digest length"),
        ("busybox@sha256:" + "A" * 64, "invalid checksum digest format"),
        ("busybox@md5:" + "a" * 32, "unsupported digest algorithm"),
        ("q.io/" + "a" * 256, "repository name must not be more than 255 characters"),
        (
            "b" * 64,
            f"invalid repository name ({'b' * 64}), cannot specify 64-byte hexadecimal strings",
        ),
    ],
)
def test_a_name_is_refused_and_why(image: str, problem: str) -> None:
    assert reference_problem(image) == problem


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("busybox", "busybox:latest"),
        ("root", "root:latest"),
        ("root:sometag", "root:sometag"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
        ("registry.example/app@" + DIGEST, "registry.example/app@" + DIGEST),
        ("root:sometag@" + DIGEST, "root:sometag@" + DIGEST),
    ],
)
def test_the_runtime_is_asked_for_a_tag_or_a_digest(image: str, asked: str) -> None:
    # TestApplyDefaultImageTag. containerd looks `cafe` up among the beginnings of images' ids.
    web = pod(replace(container("web"), image=image))
    request = container_request(web, next(pod_containers(web)))
    assert (request.image, request.spec) == (image, v1.ImageSpec(image=asked))
