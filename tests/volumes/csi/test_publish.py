"""What the driver is told: secrets, pod facts, tokens, access modes, groups."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import (
    LocalObjectReference,
    PodSecurityContext,
    Secret,
    SecretReference,
    VolumeDevice,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import TokenRequest as DriverToken
from trio.testing import MockClock

from kubelet_trio.grpc import Status
from kubelet_trio.model import PodUid, busy_threads, thread_offload
from kubelet_trio.objects import (
    ApiObject,
    KnownToken,
    NoTokens,
    ObjectError,
    ObjectKey,
    TokenRequest,
    csi_driver_key,
)
from kubelet_trio.testing.csi import CsiCall, CsiFaultKind, calls
from kubelet_trio.volumes import VolumeError
from kubelet_trio.volumes.csi import filesystem
from tests.volumes.csi.world import (
    DRIVER,
    Objects,
    World,
    block,
    claimed,
    driver_object,
    inline,
    persistent,
    pod_of,
)
from tests.volumes.host.test_left_calls import Stuck
from tests.volumes.make import main

A, B = PodUid("u-a"), PodUid("u-b")


class Tokens(NoTokens):
    """Issues a token for each audience."""

    async def issue(self, request: TokenRequest) -> KnownToken:
        return KnownToken(f"token-for-{request.audience}", 0.0, float(request.expiration_seconds))


def secret(name: str, **values: str) -> Secret:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return Secret(metadata=ObjectMeta(name=name, namespace="default"), data=data)


def sent(world: World, method: str) -> CsiCall:
    (found,) = [call for call in world.rules.log if call.method == method]
    return found


class Notes:
    """Keeps what it is told of a driver's calls."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, tuple[object, ...]]] = []
        self.ended: list[tuple[str, str]] = []

    def begin(
        self, operation: str, args: Sequence[object]
    ) -> Callable[[BaseException | None], None]:
        self.begun.append((operation, tuple(args)))
        return lambda error: self.ended.append((operation, type(error).__name__))


async def test_calls_are_noted_with_their_ends_and_without_secrets(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    notes = Notes()
    world = World(tmp_path, notes=notes)
    reference = SecretReference(name="stage", namespace="default")
    world.objects.put(
        *persistent(attributes={"token": "planted"}, nodeStageSecretRef=reference),
        secret("stage", key="planted"),
    )
    world.driver.faults.add(CsiFaultKind.ERROR, calls.STAGE, times=1)
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        await world.volumes.unmount(A)
    names = [name for name, _ in notes.begun]
    assert names == [
        *("NodeStageVolume", "NodeStageVolume", "NodePublishVolume"),
        *("NodeUnpublishVolume", "NodeUnstageVolume"),
    ]
    assert notes.ended[0] == ("NodeStageVolume", "CsiCallError")
    assert notes.ended[1:] == [(name, "NoneType") for name in names[1:]]
    driver, handle, *paths = notes.begun[2][1]
    assert (driver, handle) == (DRIVER, "vol-1")
    assert paths
    assert all(str(path).startswith(str(tmp_path)) for path in paths)
    assert "planted" not in str(notes.begun)


async def test_a_volume_is_asked_for_as_its_objects_say(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    world.objects.put(
        *persistent(
            attributes={"tier": "fast"},
            mount_options=["noatime"],
            fsType="ext4",
            nodeStageSecretRef=SecretReference(name="stage", namespace="default"),
            nodePublishSecretRef=SecretReference(name="publish", namespace="default"),
        ),
        secret("stage", key="s3cret"),
        secret("publish", other="hidden"),
    )
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed(readOnly=True), serviceAccountName="robot"))
    stage, publish = sent(world, calls.STAGE), sent(world, calls.PUBLISH)
    assert stage.secrets == {"key": "s3cret"}
    assert stage.volume_context == {"tier": "fast"}
    assert stage.capability is not None
    assert stage.capability.fs_type == "ext4"
    assert stage.capability.mount_flags == ("noatime",)
    assert publish.secrets == {"other": "hidden"}
    assert publish.is_read_only
    assert publish.volume_context == {
        "tier": "fast",
        "csi.storage.k8s.io/pod.name": "pod-u-a",
        "csi.storage.k8s.io/pod.namespace": "default",
        "csi.storage.k8s.io/pod.uid": "u-a",
        "csi.storage.k8s.io/serviceAccount.name": "robot",
        "csi.storage.k8s.io/ephemeral": "false",
    }


async def test_without_pod_info_the_pod_stays_unknown(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    world.objects.put(driver_object(podInfoOnMount=False), *persistent())
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
    assert sent(world, calls.PUBLISH).volume_context == {}


async def test_a_token_that_is_not_issued_is_named(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    asked = DriverToken(audience="vault")
    world.objects.put(driver_object(tokenRequests=[asked]), *persistent())
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(pod_of(A, claimed()))
        assert world.events.texts[0] == (
            'FailedMount: MountVolume.SetUp failed for volume "pv" : kubernetes.io/csi: '
            "mounter.SetUpAt failed to get service accoount token attributes: service account "
            'tokens need an API server: there is no token for service account "default"'
        )
        await world.volumes.unmount(A)


@pytest.mark.parametrize("in_secrets", [False, True])
async def test_tokens_come_by_audience(
    tmp_path: Path, in_secrets: bool, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, tokens=Tokens())
    world.objects.put(
        driver_object(
            tokenRequests=[DriverToken(audience="vault", expirationSeconds=60)],
            serviceAccountTokenInSecrets=in_secrets,
        ),
        *persistent(),
    )
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
    publish = sent(world, calls.PUBLISH)
    holder: Mapping[str, str] = publish.secrets if in_secrets else publish.volume_context
    other: Mapping[str, str] = publish.volume_context if in_secrets else publish.secrets
    key = "csi.storage.k8s.io/serviceAccount.tokens"
    assert json.loads(holder[key]) == {
        "vault": {"token": "token-for-vault", "expirationTimestamp": "1970-01-01T00:01:00Z"}
    }
    assert key not in other


@pytest.mark.parametrize(
    ("mode", "features", "wanted"),
    [
        ("ReadWriteOnce", (), "SINGLE_NODE_WRITER"),
        ("ReadWriteOncePod", (), "SINGLE_NODE_WRITER"),
        ("ReadOnlyMany", (), "MULTI_NODE_READER_ONLY"),
        ("ReadWriteMany", (), "MULTI_NODE_MULTI_WRITER"),
        ("ReadWriteOnce", ("SINGLE_NODE_MULTI_WRITER",), "SINGLE_NODE_MULTI_WRITER"),
        ("ReadWriteOncePod", ("SINGLE_NODE_MULTI_WRITER",), "SINGLE_NODE_SINGLE_WRITER"),
    ],
)
async def test_access_modes_follow_the_drivers_capabilities(
    tmp_path: Path, mode: str, features: tuple[str, ...], wanted: str, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, features)
    world.objects.put(*persistent(modes=[mode]))
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
    capability = sent(world, calls.PUBLISH).capability
    assert capability is not None
    assert capability.access_mode == wanted


async def test_a_driver_without_stages_gets_no_staging_path(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, ())
    world.objects.put(*persistent())
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        assert sent(world, calls.PUBLISH).staging_path == ""
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []
    world.rules.check()


GROUP = PodSecurityContext(fsGroup=4321)


async def test_a_driver_that_can_sets_the_group(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path, ("STAGE_UNSTAGE_VOLUME", "VOLUME_MOUNT_GROUP"))
    world.objects.put(driver_object(fsGroupPolicy="File"), *persistent())
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed(), securityContext=GROUP))
    for method in (calls.STAGE, calls.PUBLISH):
        capability = sent(world, method).capability
        assert capability is not None
        assert capability.mount_group == "4321"


@pytest.mark.parametrize(
    ("policy", "source", "read_only", "is_owned"),
    [
        ("File", {}, False, True),
        ("None", {"fsType": "ext4"}, False, False),
        ("ReadWriteOnceWithFSType", {"fsType": "ext4"}, False, True),
        ("ReadWriteOnceWithFSType", {}, False, False),
        (None, {"fsType": "ext4"}, False, True),  # the API's default
        ("File", {}, True, False),
    ],
)
async def test_the_agent_sets_the_group_by_policy(
    tmp_path: Path,
    policy: str | None,
    source: dict[str, Any],
    read_only: bool,
    is_owned: bool,
    autojump_clock: MockClock,
) -> None:
    world = World(tmp_path)
    world.objects.put(driver_object(fsGroupPolicy=policy), *persistent(**source))
    async with world.running():
        volume = claimed(readOnly=read_only)
        await world.volumes.mount(pod_of(A, volume, securityContext=GROUP))
    target = tmp_path / "pods/u-a/volumes/kubernetes.io~csi/pv/mount"
    assert (target.stat().st_gid == 4321) == is_owned


async def test_a_walk_that_hangs_is_left_and_keeps_its_volume(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a driver there may be a server that is dead: the walk over its files never ends."""
    mock_clock.rate, walk = 100, Stuck()
    monkeypatch.setattr(filesystem, "own_volume", lambda *_, **__: walk())
    world = World(tmp_path, offload=thread_offload)
    world.objects.put(driver_object(fsGroupPolicy="File"), *persistent())
    async with world.running():
        pod = pod_of(A, claimed(), securityContext=PodSecurityContext(fsGroup=os.getgid()))
        async with trio.open_nursery() as attempt:
            attempt.start_soon(world.volumes.mount, pod)
            await walk.wait_begun()
            attempt.cancel_scope.cancel()
        try:
            assert [name for name in busy_threads() if name.startswith("devices: ")]
            with pytest.raises(VolumeError, match="of an earlier attempt still runs"):
                await world.volumes.unmount(A)
            assert world.rules.published() != {}
        finally:
            walk.let_go()
        mock_clock.rate = 1
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []
    assert world.rules.staged() == {}


async def test_an_inline_volume_gets_the_secret_of_its_namespace(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    world.objects.put(secret("mine", key="value"))
    async with world.running():
        volume = inline(
            nodePublishSecretRef=LocalObjectReference(name="mine"),
            volumeAttributes={"size": "1Gi"},
            readOnly=True,
        )
        await world.volumes.mount(pod_of(A, volume))
    publish = sent(world, calls.PUBLISH)
    assert publish.secrets == {"key": "value"}
    assert publish.driver_context == {"size": "1Gi"}
    assert publish.is_read_only


@pytest.mark.parametrize(
    ("modes", "volume", "text"),
    [
        (
            ["Persistent"],
            inline(),
            'volume mode "Ephemeral" not supported by driver fake.csi.example.org '
            '(only supports ["Persistent"])',
        ),
        (
            ["Ephemeral"],
            claimed(),
            'volume mode "Persistent" not supported by driver fake.csi.example.org '
            '(only supports ["Ephemeral"])',
        ),
    ],
)
async def test_a_lifecycle_that_the_driver_lacks_is_refused(
    tmp_path: Path, modes: list[str], volume: Any, text: str, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    world.objects.put(driver_object(volumeLifecycleModes=modes), *persistent())
    async with world.running():
        with pytest.raises(VolumeError, match="unmounted volumes=\\[data\\]"):
            await world.volumes.mount(pod_of(A, volume))
    assert text in world.events.texts[0]
    assert world.rules.log == []


async def test_metrics_name_no_driver_that_only_a_pod_names(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whoever may create pods could make series without end."""
    world = World(tmp_path)
    async with world.running():
        for driver in (DRIVER, "made.up.example.org"):
            volume = inline()
            assert volume.csi is not None
            volume.csi.driver = driver
            with trio.move_on_after(10):
                await world.volumes.mount(pod_of(f"u-{driver}", volume))
    found = world.meter.histograms("storage_operation_duration_seconds")
    assert {labels[3] for labels, _ in found} == {
        f"kubernetes.io/csi:{DRIVER}",
        "kubernetes.io/csi",
    }


async def test_a_missing_secret_is_named(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path)
    stage = SecretReference(name="gone", namespace="vault")
    world.objects.put(*persistent(nodeStageSecretRef=stage))
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(pod_of(A, claimed()))
    assert world.events.texts[0] == (
        'FailedMount: MountVolume.MountDevice failed for volume "pv" : fetching NodeStageSecretRef '
        "vault/gone failed: kubernetes.io/csi: failed to find the secret gone in the namespace "
        'vault with error: secret "gone" not found'
    )


async def test_a_driver_that_asks_for_it_publishes_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    world.objects.put(driver_object(requiresRepublish=True), *persistent())
    made = pod_of(A, claimed())
    async with world.running():
        await world.volumes.mount(made)
        await world.volumes.refresh(made)
        published = [call for call in world.rules.log if call.method == calls.PUBLISH]
        assert len(published) == 2
        await world.volumes.unmount(A)
    world.rules.check()


async def test_others_are_published_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    world = World(tmp_path)
    world.objects.put(*persistent())
    made = pod_of(A, claimed())
    async with world.running():
        await world.volumes.mount(made)
        await world.volumes.refresh(made)
        await world.volumes.mount(made)
    assert sent(world, calls.PUBLISH).volume_id == "vol-1"


async def test_another_group_after_a_restart_is_not_a_second_stage(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A driver answers ALREADY_EXISTS to the same stage with another volume_mount_group."""
    features = ("STAGE_UNSTAGE_VOLUME", "VOLUME_MOUNT_GROUP", "SINGLE_NODE_MULTI_WRITER")
    world = World(tmp_path, features)
    world.objects.put(*persistent())
    async with world.running():
        await world.volumes.mount(
            pod_of(A, claimed(), securityContext=PodSecurityContext(fsGroup=1000))
        )
    world.restart()
    async with world.running():
        await world.volumes.mount(
            pod_of(B, claimed(), securityContext=PodSecurityContext(fsGroup=2000))
        )
        assert world.events.texts == []
        publish = world.rules.log[-1]
        assert publish.capability is not None
        assert publish.capability.mount_group == "2000"
        await world.volumes.unmount(A)
        await world.volumes.unmount(B)
    assert world.left_on_disk() == []
    world.rules.check()


async def test_a_left_stage_with_another_group_is_undone_first(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, ("STAGE_UNSTAGE_VOLUME", "VOLUME_MOUNT_GROUP"))
    world.objects.put(*persistent())
    async with world.running():
        await world.volumes.mount(
            pod_of(A, claimed(), securityContext=PodSecurityContext(fsGroup=1000))
        )
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, status=Status.INTERNAL)
        await world.volumes.unmount(A)
        await world.volumes.mount(
            pod_of(B, claimed(), securityContext=PodSecurityContext(fsGroup=2000))
        )
        stages = [c for c in world.rules.log if c.method == calls.STAGE]
        assert [c.capability and c.capability.mount_group for c in stages] == ["1000", "2000"]
        await world.volumes.unmount(B)
    assert world.events.texts == []
    assert world.left_on_disk() == []
    world.rules.check()


async def test_another_volume_of_the_name_does_not_replace_one_that_a_pod_has(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The persistent volume was deleted and made again: the record is all that shows the old."""
    world = World(tmp_path)
    world.objects.put(*persistent())
    made = pod_of("u-1", claimed())
    async with world.running():
        await world.volumes.mount(made)
        world.restart()
    async with world.running():
        world.objects.put(*persistent(handle="vol-2"))
        with pytest.raises(VolumeError, match="unmounted volumes"):
            await world.volumes.mount(made)
        text = "the volume vol-1 of driver fake.csi.example.org is still published here"
        assert any(text in found for found in world.events.texts)
        await world.volumes.unmount(PodUid("u-1"))
        await world.volumes.unused.clean()
        assert world.left_on_disk() == []
    world.rules.check()


class Unread(Objects):
    """An API server that does not answer for CSIDrivers."""

    async def get(self, key: ObjectKey, uid: PodUid) -> ApiObject:
        if key == csi_driver_key(DRIVER):
            raise ObjectError("no answer")
        return await super().get(key, uid)


async def test_a_driver_object_that_cannot_be_read_is_waited_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Nobody knows then whether the volume has to be attached."""
    world = World(tmp_path, objects=Unread())
    world.objects.put(*persistent())
    async with world.running():
        with pytest.raises(VolumeError, match=r"unmounted volumes=\[data\]"):
            await world.volumes.mount(pod_of("u-1", claimed()))
        assert 'FailedMount: MountVolume.SetUp failed for volume "pv" : no answer' in (
            world.events.texts
        )
        await world.volumes.unmount(PodUid("u-1"))


@pytest.mark.parametrize("read_only", ["one", "two"])
@pytest.mark.parametrize("is_block", [False, True])
async def test_a_claim_that_a_pod_names_twice_is_published_once(
    tmp_path: Path, autojump_clock: MockClock, is_block: bool, read_only: str
) -> None:
    world = World(tmp_path)
    world.objects.put(*(block() if is_block else persistent()))
    made = pod_of(A, *(claimed(name, readOnly=name == read_only) for name in ("one", "two")))
    assert made.spec is not None
    (container,) = made.spec.containers
    if is_block:
        container.volumeDevices = [
            VolumeDevice(devicePath=f"/dev/{name}", name=name) for name in ("one", "two")
        ]
        container.volumeMounts = None
    async with world.running():
        await world.volumes.mount(made)
        (call,) = [call for call in world.rules.log if call.method == calls.PUBLISH]
        assert not call.is_read_only  # one of the two is written to
        found = await world.volumes.container_mounts(made, main(made))
        assert [mount.readonly for mount in found].count(True) == (0 if is_block else 1)
        await world.volumes.unmount(A)
    world.check_clean()
