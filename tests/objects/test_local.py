from __future__ import annotations

import base64

import pytest
from lightkube.models.core_v1 import ConfigMap, PersistentVolume, Secret
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import PodUid
from kubelet_trio.objects import (
    LocalObjects,
    ObjectKey,
    ObjectNotFoundError,
    config_map_content,
    config_map_key,
    object_key,
    read_objects,
    secret_content,
    secret_key,
)


def config_map(name: str = "config", **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


KEY = config_map_key("default", "config")


async def test_a_missing_object_is_named_as_the_api_server_does() -> None:
    objects = LocalObjects()
    with pytest.raises(ObjectNotFoundError) as caught:
        await objects.get(KEY)
    assert str(caught.value) == 'configmap "config" not found'
    with pytest.raises(ObjectNotFoundError, match='secret "s" not found'):
        await objects.get(secret_key("default", "s"))


async def test_pods_are_told_of_what_they_hold_and_of_nothing_else() -> None:
    told: list[PodUid] = []
    objects = LocalObjects(told.append)
    objects.hold(PodUid("a"), [KEY, config_map_key("default", "other")])
    objects.hold(PodUid("b"), [secret_key("default", "config")])
    objects.apply({KEY: config_map(a="1")})
    assert told == ["a"]
    objects.apply({KEY: config_map(a="1"), config_map_key("x", "config"): config_map()})
    assert told == ["a"]  # the same content, and a namesake elsewhere
    objects.apply({KEY: config_map(a="2"), config_map_key("default", "other"): config_map()})
    assert told == ["a", "a"]  # once, though two changed
    objects.apply({})
    assert told == ["a", "a", "a"]


async def test_the_last_holder_lets_go_of_a_key() -> None:
    objects = LocalObjects()
    objects.hold(PodUid("a"), [KEY])
    objects.hold(PodUid("b"), [KEY])
    objects.release(PodUid("a"))
    assert objects.held == {KEY}
    objects.release(PodUid("b"))
    objects.release(PodUid("b"))
    assert objects.held == set()


async def test_a_view_keeps_what_was_read_and_what_was_not_there() -> None:
    objects = LocalObjects()
    objects.apply({KEY: config_map(a="1")})
    missing = config_map_key("default", "missing")
    view = await read_objects(objects, [KEY, missing, KEY], PodUid("a"))
    assert view.get(KEY, ConfigMap).data == {"a": "1"}
    assert view.get_optional(missing, ConfigMap, optional=True) is None
    with pytest.raises(ObjectNotFoundError):
        view.get_optional(missing, ConfigMap, optional=None)
    with pytest.raises(ObjectNotFoundError):
        view.get(KEY, Secret)


def test_keys_have_a_namespace_unless_they_are_the_clusters() -> None:
    assert object_key(ConfigMap(metadata=ObjectMeta(name="c"))) == ("ConfigMap", "default", "c")
    volume = PersistentVolume(metadata=ObjectMeta(name="v", namespace="x"))
    assert object_key(volume) == ObjectKey("PersistentVolume", "", "v")


def test_content_is_bytes_whatever_it_was_written_as() -> None:
    encoded = base64.encodebytes(b"\xff" * 80).decode()  # with line breaks
    assert config_map_content(ConfigMap(data={"a": "ä"}, binaryData={"b": encoded})) == {
        "a": "ä".encode(),
        "b": b"\xff" * 80,
    }
    secret = Secret(data={"a": "MQ==", "b": "Mg=="}, stringData={"b": "3"})
    assert secret_content(secret) == {"a": b"1", "b": b"3"}
    with pytest.raises(ValueError, match="not base64"):
        secret_content(Secret(data={"a": "*"}))
