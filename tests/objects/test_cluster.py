"""Objects from an API server: one watch each, and what is known outlives the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import (
    ConfigMap,
    CSIPersistentVolumeSource,
    CSIVolumeSource,
    FlexVolumeSource,
    ISCSIVolumeSource,
    LocalObjectReference,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    Secret,
    SecretReference,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import ResourcePool, ResourceSliceSpec
from lightkube.models.storage_v1 import (
    CSIDriver,
    CSIDriverSpec,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from msgspec.structs import replace
from trio.testing import MockClock

from kubelet_trio.kube import route_of
from kubelet_trio.model import PodKey, PodUid
from kubelet_trio.objects import (
    API_VERSIONS,
    DOCUMENT_KINDS,
    KINDS,
    ChangeDetection,
    ClusterObjects,
    LocalObjects,
    NodeObjects,
    ObjectError,
    ObjectNotFoundError,
    claim_key,
    config_map_key,
    csi_driver_key,
    object_key,
    persistent_references,
    secret_key,
    volume_references,
)
from kubelet_trio.testing import FakeKube

ONE, TWO = PodUid("one"), PodUid("two")
KEY = config_map_key("default", "config")


def config_map(name: str = "config", immutable: bool | None = None, **data: str) -> ConfigMap:
    meta = ObjectMeta(name=name, namespace="default")
    return ConfigMap(metadata=meta, data=data, immutable=immutable)


class World:
    def __init__(self, strategy: ChangeDetection = ChangeDetection.WATCH) -> None:
        self.kube = FakeKube()
        self.told: list[PodUid] = []
        self.objects = ClusterObjects(self.kube, self.told.append, strategy=strategy)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.objects.tree.run)
            yield
            nursery.cancel_scope.cancel()

    def put(self, obj: ConfigMap) -> None:
        """Create a config map, or give it other data."""
        assert obj.metadata is not None
        if self.kube.find(ConfigMap, obj.metadata.name or "") is None:
            self.kube.add(obj)
        else:
            self.kube.change(ConfigMap, obj.metadata.name or "", {"data": obj.data})

    def asked(self, verb: str) -> int:
        return sum(request.verb == verb for request in self.kube.requests)

    async def data(self) -> dict[str, str]:
        found = await self.objects.get(KEY)
        assert isinstance(found, ConfigMap)
        return dict(found.data or {})


@pytest.fixture
def world() -> World:
    return World()


async def test_pods_share_one_watch_and_are_told_of_changes(
    world: World, autojump_clock: MockClock
) -> None:
    world.put(config_map(A="1"))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        world.objects.hold(TWO, [KEY])
        assert await world.data() == {"A": "1"}
        assert world.told == []
        world.put(config_map(A="2"))
        await trio.sleep(1)
        assert world.told == [ONE, TWO]
        assert await world.data() == {"A": "2"}
        assert (world.asked("list"), world.asked("watch"), world.asked("get")) == (1, 1, 0)


async def test_a_missing_object_is_told_when_it_comes_and_when_it_goes(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        world.objects.hold(ONE, [KEY])
        with pytest.raises(ObjectNotFoundError, match='configmap "config" not found'):
            await world.objects.get(KEY)
        world.put(config_map(A="1"))
        await trio.sleep(1)
        assert (await world.data(), world.told) == ({"A": "1"}, [ONE])
        world.kube.remove(ConfigMap, "config", "default")
        await trio.sleep(1)
        assert world.told == [ONE, ONE]
        with pytest.raises(ObjectNotFoundError):
            await world.objects.get(KEY)


async def test_the_watch_ends_with_the_last_pod_and_comes_again_with_the_next(
    world: World, autojump_clock: MockClock
) -> None:
    world.put(config_map(A="1"))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        world.objects.hold(TWO, [KEY])
        await world.data()
        world.objects.release(ONE)
        assert world.objects.tree.names() == ("configmap:default/config",)
        world.objects.release(TWO)
        await world.objects.tree.wait_idle()
        world.put(config_map(A="2"))
        world.objects.hold(ONE, [KEY])
        assert await world.data() == {"A": "2"}
        assert world.told == []


async def test_a_pod_that_comes_while_the_watch_is_being_ended_gets_a_new_one(
    world: World, autojump_clock: MockClock
) -> None:
    world.put(config_map(A="1"))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        await world.data()
        world.objects.release(ONE)
        world.objects.hold(TWO, [KEY])
        assert await world.data() == {"A": "1"}
        world.put(config_map(A="2"))
        await trio.sleep(1)
        assert world.told == [TWO]


async def test_an_immutable_object_is_read_once(world: World, autojump_clock: MockClock) -> None:
    world.put(config_map(A="1", immutable=True))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        assert await world.data() == {"A": "1"}
        await world.objects.tree.wait_idle()
        world.objects.hold(TWO, [KEY])
        assert await world.data() == {"A": "1"}
        await trio.sleep(3600)
        assert (world.asked("list"), world.asked("watch"), world.asked("get")) == (1, 0, 0)
        world.objects.release(ONE)
        world.objects.release(TWO)
        assert not world.objects.held


async def test_what_is_known_outlives_the_server_and_news_come_with_it(
    world: World, autojump_clock: MockClock
) -> None:
    world.put(config_map(A="1"))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        await world.data()
        world.kube.go_down()
        await trio.sleep(600)
        assert await world.data() == {"A": "1"}
        world.put(config_map(A="2"))
        world.kube.come_back()
        await trio.sleep(120)
        assert (await world.data(), world.told) == ({"A": "2"}, [ONE])


async def test_what_was_never_read_cannot_be_told_and_is_told_when_it_can(
    world: World, autojump_clock: MockClock
) -> None:
    world.put(config_map(A="1"))
    world.kube.go_down()
    async with world.running():
        world.objects.hold(ONE, [KEY])
        with pytest.raises(ObjectError, match="failed to get configmap default/config: ") as caught:
            await world.objects.get(KEY)
        assert not isinstance(caught.value, ObjectNotFoundError)
        world.kube.come_back()
        await trio.sleep(120)
        assert (await world.data(), world.told) == ({"A": "1"}, [ONE])


async def test_a_server_that_hangs_holds_nobody_up_for_long(
    world: World, autojump_clock: MockClock
) -> None:
    world.kube.hang()
    async with world.running():
        world.objects.hold(ONE, [KEY])
        with (
            trio.fail_after(11),
            pytest.raises(ObjectError, match="failed to sync configmap cache"),
        ):
            await world.objects.get(KEY)


async def test_a_watch_on_which_nothing_comes_is_given_up(
    world: World, autojump_clock: MockClock
) -> None:
    world.put(config_map(A="1"))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        await world.data()
        world.kube.hang()
        await trio.sleep(200)
        assert world.asked("watch") > 1
        assert await world.data() == {"A": "1"}


async def test_a_node_reads_and_watches_with_its_own_rights(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(Secret(metadata=ObjectMeta(name="s", namespace="default"), data={}))
    objects = ClusterObjects(kube.node("node"))
    async with trio.open_nursery() as nursery:
        await nursery.start(objects.tree.run)
        objects.hold(ONE, [secret_key("default", "s")])
        with pytest.raises(ObjectError, match="failed to get secret default/s"):
            await objects.get(secret_key("default", "s"))  # no pod of the node's uses it
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[ChangeDetection.CACHE, ChangeDetection.GET])
def unwatched(request: pytest.FixtureRequest) -> World:
    return World(request.param)


async def test_the_other_strategies_watch_nothing(
    unwatched: World, autojump_clock: MockClock
) -> None:
    unwatched.put(config_map(A="1"))
    async with unwatched.running():
        unwatched.objects.hold(ONE, [KEY])
        assert await unwatched.data() == {"A": "1"}
        unwatched.put(config_map(A="2"))
        await trio.sleep(61)
        assert await unwatched.data() == {"A": "2"}
        assert await unwatched.data() == {"A": "2"}
        assert (unwatched.asked("list"), unwatched.asked("watch")) == (0, 0)
        cached = unwatched.objects._strategy is ChangeDetection.CACHE
        assert unwatched.asked("get") == (2 if cached else 3)


async def test_an_immutable_object_that_was_replaced_is_read_without_a_watch(
    unwatched: World, autojump_clock: MockClock
) -> None:
    """As any other: only a deletion ends it, and only the strategy Watch promises to see none."""
    unwatched.put(config_map(A="1", immutable=True))
    async with unwatched.running():
        unwatched.objects.hold(ONE, [KEY])
        assert await unwatched.data() == {"A": "1"}
        unwatched.kube.remove(ConfigMap, "config")
        unwatched.put(config_map(A="2", immutable=True))
        await trio.sleep(61)
        assert await unwatched.data() == {"A": "2"}


async def test_a_cache_is_as_old_as_the_node_may_have_it(autojump_clock: MockClock) -> None:
    world = World(ChangeDetection.CACHE)
    ttl = 60.0
    world.objects._time_to_live = lambda: ttl
    world.put(config_map(A="1"))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        await world.data()
        world.put(config_map(A="2"))
        await trio.sleep(59)
        assert await world.data() == {"A": "1"}
        ttl = 0.0
        assert await world.data() == {"A": "2"}


async def test_a_pod_that_comes_gets_what_there_is_now(autojump_clock: MockClock) -> None:
    world = World(ChangeDetection.CACHE)
    world.put(config_map(A="1"))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        await world.data()
        world.put(config_map(A="2"))
        world.objects.hold(TWO, [KEY])
        assert await world.data() == {"A": "2"}
        world.kube.go_down()
        world.objects.hold(TWO, [KEY])
        assert await world.data() == {"A": "2"}, "there is no newer to be had"


async def test_a_cache_is_better_than_no_answer(autojump_clock: MockClock) -> None:
    world = World(ChangeDetection.CACHE)
    world.put(config_map(A="1"))
    async with world.running():
        world.objects.hold(ONE, [KEY])
        await world.data()
        world.kube.go_down()
        await trio.sleep(3600)
        assert await world.data() == {"A": "1"}


async def test_a_claim_is_read_until_it_is_bound(world: World, autojump_clock: MockClock) -> None:
    meta = ObjectMeta(name="data", namespace="default")
    spec = PersistentVolumeClaimSpec(volumeName="pv")
    key = claim_key("default", "data")
    world.objects.hold(ONE, [key])
    world.kube.add(PersistentVolumeClaim(metadata=meta, spec=spec))
    await world.objects.get(key)
    bound = {"status": {"phase": "Bound"}}
    world.kube.change(PersistentVolumeClaim, "data", bound, subresource="status")
    for _ in range(3):
        found = await world.objects.get(key)
        assert isinstance(found, PersistentVolumeClaim)
        assert found.status is not None
        assert found.status.phase == "Bound"
    assert (world.asked("get"), world.asked("watch")) == (2, 0)


async def test_static_pods_have_the_documents_beside_them(
    world: World, autojump_clock: MockClock
) -> None:
    local = LocalObjects()
    local.apply({KEY: config_map(A="local")})
    both = NodeObjects(local, world.objects, lambda uid: uid == ONE)
    async with world.running():
        both.hold(ONE, [KEY])
        found = await both.get(KEY, ONE)
        assert isinstance(found, ConfigMap)
        assert found.data == {"A": "local"}
        assert world.kube.requests == []
        world.put(config_map(A="cluster"))
        both.hold(TWO, [KEY])
        found = await both.get(KEY, TWO)
        assert isinstance(found, ConfigMap)
        assert found.data == {"A": "cluster"}
        # Another pod's hold gives a static one nothing: neither other content ...
        found = await both.get(KEY, ONE)
        assert isinstance(found, ConfigMap)
        assert found.data == {"A": "local"}
        # ... nor an object that only the cluster has.
        local.apply({})
        with pytest.raises(ObjectNotFoundError):
            await both.get(KEY, ONE)


async def test_a_driver_is_watched_for_the_pods_that_hold_it(
    world: World, autojump_clock: MockClock
) -> None:
    key = csi_driver_key("disk.example.com")
    async with world.running():
        world.objects.hold(ONE, [key])
        world.objects.hold(TWO, [key])
        with pytest.raises(ObjectNotFoundError):
            await world.objects.get(key)
        spec = CSIDriverSpec(attachRequired=False)
        world.kube.add(CSIDriver(metadata=ObjectMeta(name="disk.example.com"), spec=spec))
        await trio.testing.wait_all_tasks_blocked()
        assert world.told == [ONE, TWO]
        found = await world.objects.get(key)
        assert isinstance(found, CSIDriver)
        assert found.spec.attachRequired is False
    assert world.asked("watch") == 1


def test_what_a_pod_and_its_persistent_volume_need() -> None:
    csi = CSIVolumeSource(driver="inline", nodePublishSecretRef=LocalObjectReference(name="s"))
    volume = Volume(name="v", csi=csi)
    assert list(volume_references(PodKey("ns", "p"), volume)) == [
        csi_driver_key("inline"),
        secret_key("ns", "s"),
    ]
    source = CSIPersistentVolumeSource(
        driver="disk",
        volumeHandle="1",
        controllerPublishSecretRef=SecretReference(name="not-the-nodes", namespace="st"),
        nodeStageSecretRef=SecretReference(name="stage", namespace="st"),
        nodePublishSecretRef=SecretReference(name="publish", namespace="st"),
    )
    claimed = PersistentVolume(spec=PersistentVolumeSpec(csi=source))
    assert list(persistent_references(claimed)) == [
        csi_driver_key("disk"),
        secret_key("st", "stage"),
        secret_key("st", "publish"),
    ]
    assert list(persistent_references(PersistentVolume())) == []


@pytest.mark.parametrize("kind", ["iscsi", "flexVolume"])
def test_what_disks_and_drivers_of_the_host_need(kind: str) -> None:
    own, other = SecretReference(name="a"), SecretReference(name="b", namespace="st")
    sources: dict[str, Any] = {
        "iscsi": ISCSIVolumeSource(iqn="iqn.2001-04.x:y", lun=0, targetPortal="10.0.0.1"),
        "flexVolume": FlexVolumeSource(driver="v/d"),
    }
    inline = Volume(name="v", **{kind: replace(sources[kind], secretRef=own)})
    assert list(volume_references(PodKey("ns", "p"), inline)) == [secret_key("ns", "a")]
    claim = ObjectReference(namespace="ns", name="c")
    for secret, wanted in ((own, secret_key("ns", "a")), (other, secret_key("st", "b"))):
        spec = PersistentVolumeSpec(
            claimRef=claim, **{kind: replace(sources[kind], secretRef=secret)}
        )
        assert list(persistent_references(PersistentVolume(spec=spec))) == [wanted]
    bare = PersistentVolume(spec=PersistentVolumeSpec(**{kind: sources[kind]}))
    assert list(persistent_references(bare)) == []


def test_kinds_and_their_models_agree() -> None:
    for kind, model in KINDS.items():
        assert model.__name__ == kind
        assert kind in KINDS
        assert route_of(model).api_version == API_VERSIONS.get(kind, "v1")
        namespaced = route_of(model).namespaced
        assert bool(object_key(model(**needed(kind))).namespace) is namespaced
    assert set(DOCUMENT_KINDS) <= set(KINDS)
    assert "Pod" not in KINDS
    with pytest.raises(KeyError):
        KINDS["Pod"]


def needed(kind: str) -> dict[str, Any]:
    """Return the fields without which a model cannot be made."""
    fields: dict[str, dict[str, Any]] = {
        "CSIDriver": {"spec": CSIDriverSpec()},
        "StorageClass": {"provisioner": "disk"},
        "RuntimeClass": {"handler": "runc"},
        "VolumeAttachment": {
            "spec": VolumeAttachmentSpec("driver", "node-1", VolumeAttachmentSource())
        },
        "ResourceSlice": {
            "spec": ResourceSliceSpec("driver", ResourcePool(1, "node-1", resourceSliceCount=1))
        },
    }
    return fields.get(kind, {})
