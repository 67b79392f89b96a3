"""That a pull uses what there is: the pod's secrets in their order, then the node's own."""

from __future__ import annotations

import base64
import json

import pytest
from lightkube.models.core_v1 import Container, LocalObjectReference, Pod, PodSpec, Secret
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.cri import v1
from kubelet_trio.model import EventType, ObjectRef, PodContainer, SystemClock, pod_containers
from kubelet_trio.objects import LocalObjects, object_key, pod_references
from kubelet_trio.pods import ImageError, ImagePuller
from kubelet_trio.testing import FakeRuntime

IMAGE = "reg.example/team/app:1"


def secret(name: str, user: str, location: str = "reg.example") -> Secret:
    auths = {"auths": {location: {"username": user, "password": "p"}}}
    return Secret(
        metadata=ObjectMeta(name=name, namespace="default"),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": base64.b64encode(json.dumps(auths).encode()).decode()},
    )


def pod(*secrets: str) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid="u1"),
        spec=PodSpec(
            containers=[Container(name="main", image=IMAGE)],
            imagePullSecrets=[LocalObjectReference(name=name) for name in secrets],
        ),
    )


def only_container(of: Pod) -> PodContainer:
    return next(iter(pod_containers(of)))


class Node:
    """An image puller, its runtime and what it told."""

    def __init__(self, *secrets: Secret) -> None:
        self.runtime = FakeRuntime()
        self.told: list[tuple[str, str]] = []
        objects = LocalObjects()
        objects.apply({object_key(s): s for s in secrets})
        self.puller = ImagePuller(self.runtime, self, SystemClock(), objects=objects)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.told.append((reason, message))

    async def pull(self, wanted: Pod) -> list[str]:
        """Pull, and return the users that were tried."""
        await self.puller.ensure(wanted, only_container(wanted), v1.PodSandboxConfig())
        return [user for _name, user in self.runtime.images.tried]


async def test_secrets_are_tried_until_one_is_taken() -> None:
    node = Node(secret("one", "a"), secret("two", "b"), secret("three", "c"))
    node.runtime.images.logins[IMAGE] = "b"
    assert await node.pull(pod("one", "two", "three")) == ["a", "b"]


async def test_without_a_matching_login_the_pull_is_anonymous() -> None:
    node = Node(secret("other", "a", "elsewhere.example"))
    assert await node.pull(pod("other")) == [""]


async def test_a_missing_secret_is_told_and_the_pull_goes_on() -> None:
    node = Node(secret("one", "a"))
    assert await node.pull(pod("gone", "one")) == ["a"]
    assert node.told[1] == (
        "FailedToRetrieveImagePullSecret",
        "Unable to retrieve some image pull secrets (gone); "
        "attempting to pull the image may not succeed.",
    )


async def test_an_entry_without_a_name_is_no_secret() -> None:
    """The API server lets it pass (kubernetes/kubernetes#99454)."""
    node = Node(secret("one", "a"))
    assert await node.pull(pod("", "one")) == ["a"]
    assert "FailedToRetrieveImagePullSecret" not in [reason for reason, _text in node.told]
    assert [key.name for key in pod_references(pod("", "one"))] == ["one"]


async def test_where_no_login_is_taken_the_last_refusal_is_told() -> None:
    node = Node(secret("one", "a"), secret("two", "b"))
    node.runtime.images.logins[IMAGE] = "c"
    with pytest.raises(ImageError, match=r"ErrImagePull: .*401 Unauthorized"):
        await node.pull(pod("one", "two"))


async def test_a_broken_secret_is_named() -> None:
    broken = secret("one", "a")
    broken.data = {".dockerconfigjson": base64.b64encode(b"{").decode()}
    node = Node(broken)
    with pytest.raises(ImageError, match="image pull secret default/one: not JSON"):
        await node.pull(pod("one"))
