from __future__ import annotations

import pytest
from lightkube.models.core_v1 import ContainerPort

from kubelet_trio.containers import container_hash
from tests.containers.make import container


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        # The Go kubelet's own test vectors.
        ("foo", "bar", 0x11A6D6D6),
        ("test_container", "foo/image:v1", 0x8E45CBD0),
    ],
)
def test_hash_is_the_go_kubelets(name: str, image: str, expected: int) -> None:
    assert container_hash(container(name, image=image)) == expected


def test_only_name_and_image_count() -> None:
    plain = container()
    changed = container(ports=[ContainerPort(containerPort=80)], command=["sh"], tty=True)
    assert container_hash(plain) == container_hash(changed)
    assert container_hash(plain) != container_hash(container(image="busybox:2"))
    assert container_hash(plain) != container_hash(container("other"))


def test_text_that_go_escapes_is_hashed_as_go_writes_it() -> None:
    encoded = rb'{"image":"\u003cx\u003e\u0026","name":"a"}'
    printed = "([]uint8)[" + " ".join(map(str, encoded)) + "]"
    assert container_hash(container("a", image="<x>&")) == fnv1a(printed.encode())


def fnv1a(data: bytes) -> int:
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 % 2**32
    return value
