"""The store between workers and whoever passes statuses on."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.status import StatusStore
from tests.agent.node import make_pod

POD = make_pod()
UID = pod_uid(POD)


class Heard:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.pods: dict[PodUid, Pod] = {}

    def put(self, uid: PodUid, pod: Pod, *, is_finished: bool = False) -> None:
        self.pods[uid] = pod

    def forget(self, uid: PodUid) -> None:
        self.pods.pop(uid, None)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def store(heard: Heard) -> StatusStore:
    return StatusStore(heard)


def test_a_pod_that_is_only_listed_is_told_to_nobody(store: StatusStore, heard: Heard) -> None:
    store.show(UID, POD)
    store.deliver()
    assert store.pods.value == {UID: POD}
    assert heard.pods == {}


def test_what_is_known_of_it_is_told(store: StatusStore, heard: Heard) -> None:
    store.show(UID, POD)
    store.put(UID, POD)
    store.deliver()
    assert heard.pods == {UID: POD}


@pytest.mark.parametrize("delivered", [False, True])
def test_a_worker_that_begins_anew_takes_back_nothing(
    store: StatusStore, heard: Heard, delivered: bool
) -> None:
    told = make_pod(image="other")
    store.put(UID, told)
    if delivered:
        store.deliver()
    store.show(UID, POD)
    store.deliver()
    assert store.pods.value == {UID: told}
    assert heard.pods == {UID: told}


def test_a_pod_that_comes_back_before_it_was_forgotten_is_forgotten_by_the_listener(
    store: StatusStore, heard: Heard
) -> None:
    store.put(UID, POD)
    store.deliver()
    store.forget(UID)
    store.show(UID, POD)
    store.deliver()
    assert store.pods.value == {UID: POD}
    assert heard.pods == {}
