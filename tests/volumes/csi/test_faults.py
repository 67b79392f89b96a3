"""CSI volumes with drivers that fail, hang, answer late, or die; in virtual time."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import Volume
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.grpc import Status
from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import CsiFaultKind, calls
from kubelet_trio.volumes import VolumeError
from kubelet_trio.volumes.csi.types import Driver
from tests.volumes.csi.world import World, claimed, driver_object, inline, persistent, pod_of
from tests.volumes.make import empty_dir

A, B = PodUid("u-a"), PodUid("u-b")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.objects.put(*persistent(), *persistent("other", "vol-2"))
    return made


async def test_each_failure_is_an_event_and_is_tried_again_later(
    world: World, autojump_clock: MockClock
) -> None:
    world.driver.faults.add(
        CsiFaultKind.ERROR, calls.STAGE, times=4, status=Status.INTERNAL, message="no disk"
    )
    began = trio.current_time()
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
    assert world.events.texts == 4 * [
        'FailedMount: MountVolume.MountDevice failed for volume "pv" : '
        "rpc error: code = Internal desc = no disk"
    ]
    assert trio.current_time() - began == pytest.approx(0.5 + 1 + 2 + 4)
    world.rules.check()


async def test_after_a_while_the_pod_is_told_what_it_waits_for(
    world: World, autojump_clock: MockClock
) -> None:
    world.driver.faults.add(CsiFaultKind.ERROR, calls.PUBLISH, times=None, status=Status.NOT_FOUND)
    began = trio.current_time()
    async with world.running():
        with pytest.raises(VolumeError) as caught:
            await world.volumes.mount(pod_of(A, claimed("b"), inline("a"), empty_dir("tmp")))
    assert str(caught.value) == (
        "Unable to attach or mount volumes: unmounted volumes=[a b], unattached volumes=[], "
        "failed to process volumes=[]: context deadline exceeded"
    )
    assert trio.current_time() - began == 123
    # Its directory is there although another volume of the pod failed.
    assert (world.root / "pods/u-a/volumes/kubernetes.io~empty-dir/tmp").is_dir()


async def test_a_call_that_hangs_ends_after_two_minutes_and_is_repeated(
    world: World, autojump_clock: MockClock
) -> None:
    world.driver.faults.add(CsiFaultKind.HANG, calls.STAGE)
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        assert world.events.texts == [
            'FailedMount: MountVolume.MountDevice failed for volume "pv" : '
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
        ]
        assert trio.current_time() == pytest.approx(120.5, abs=0.5)
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_volume_that_hangs_holds_up_no_other(
    world: World, autojump_clock: MockClock
) -> None:
    """Neither another volume of the pod, nor a pod with another volume."""
    world.driver.faults.add(CsiFaultKind.HANG, calls.PUBLISH, "vol-1", times=None)
    async with world.running(), trio.open_nursery() as nursery:
        hanging = pod_of(A, claimed("slow"), claimed("quick", "other"), empty_dir("tmp"))
        scope = trio.CancelScope()

        async def mount_hanging() -> None:
            with scope:
                await world.volumes.mount(hanging)

        nursery.start_soon(mount_hanging)
        await trio.sleep(1)
        assert list(world.rules.published()) >= ["vol-2"]
        await world.volumes.mount(pod_of(B, claimed("data", "other")))
        assert trio.current_time() < 2
        await world.volumes.unmount(B)
        scope.cancel()


async def test_a_missing_object_of_a_quick_volume_does_not_hold_up_the_driver(
    world: World, autojump_clock: MockClock
) -> None:
    """And what appears later is used, without a new start of the pod."""
    from lightkube.models.core_v1 import ConfigMap, ConfigMapVolumeSource, Volume
    from lightkube.models.meta_v1 import ObjectMeta

    config = Volume(name="conf", configMap=ConfigMapVolumeSource(name="conf"))
    async with world.running(), trio.open_nursery() as nursery:
        nursery.start_soon(world.volumes.mount, pod_of(A, claimed(), config))
        await trio.sleep(1.2)
        assert "vol-1" in world.rules.published()
        world.objects.put(ConfigMap(metadata=ObjectMeta(name="conf", namespace="default")))
    assert world.events.texts[0].startswith(
        'FailedMount: MountVolume.SetUp failed for volume "conf" : configmap "conf" not found'
    )


async def test_an_uncertain_publish_is_undone(world: World, autojump_clock: MockClock) -> None:
    world.driver.faults.add(CsiFaultKind.LOST_REPLY, calls.PUBLISH, times=None)
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(pod_of(A, claimed()))
        assert "vol-1" in world.rules.published()
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_final_error_leaves_nothing_to_undo_but_the_stage(
    world: World, autojump_clock: MockClock
) -> None:
    world.driver.faults.add(CsiFaultKind.ERROR, calls.PUBLISH, times=None, status=Status.INTERNAL)
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(pod_of(A, claimed()))
        await world.volumes.unmount(A)
    assert calls.UNPUBLISH not in [call.method for call in world.rules.log]
    world.check_clean()


async def test_a_stage_that_surely_failed_is_not_undone(
    world: World, autojump_clock: MockClock
) -> None:
    world.driver.faults.add(CsiFaultKind.ERROR, calls.STAGE, times=None, status=Status.INTERNAL)
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(pod_of(A, claimed()))
        assert world.left_on_disk() == []
        await world.volumes.unmount(A)
    assert calls.UNSTAGE not in [call.method for call in world.rules.log]


async def test_an_unstage_that_fails_holds_up_no_pod(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, status=Status.INTERNAL)
        await world.volumes.unmount(A)
        assert "vol-1" in world.rules.staged()
        await world.volumes.unused.clean()
    world.check_clean()


async def test_an_unpublish_that_fails_keeps_the_pod(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed(), claimed("b", "other")))
        world.driver.faults.add(
            CsiFaultKind.ERROR, calls.UNPUBLISH, "vol-1", status=Status.INTERNAL, message="busy"
        )
        with pytest.raises(VolumeError) as caught:
            await world.volumes.unmount(A)
        assert str(caught.value) == (
            'UnmountVolume.TearDown failed for volume "pv" : kubernetes.io/csi: '
            "Unmounter.TearDownAt failed: rpc error: code = Internal desc = busy"
        )
        assert list(world.rules.published()) == ["vol-1"]  # the other one is gone
        await world.volumes.unmount(A)
    world.check_clean()


@pytest.mark.parametrize("volume", [inline(), claimed()], ids=["inline", "claimed"])
async def test_a_volume_that_never_was_is_no_obstacle(
    world: World, volume: Volume, autojump_clock: MockClock
) -> None:
    """A driver that was away does not know the volume, and cannot unpublish it."""
    world.driver.faults.add(CsiFaultKind.ERROR, calls.PUBLISH, times=None)
    world.driver.faults.add(
        CsiFaultKind.REFUSE, calls.UNPUBLISH, times=None, status=Status.NOT_FOUND
    )
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(pod_of(A, volume))
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []
    world.rules.check()


async def test_an_inline_volume_whose_end_was_not_answered_is_gone(
    world: World, autojump_clock: MockClock
) -> None:
    """A driver deletes it with the unpublish, and does not know it the next time."""
    async with world.running():
        await world.volumes.mount(pod_of(A, inline()))
        world.driver.faults.add(CsiFaultKind.LOST_REPLY, calls.UNPUBLISH)
        with pytest.raises(VolumeError, match="code = Unavailable"):
            await world.volumes.unmount(A)
        world.driver.faults.add(
            CsiFaultKind.REFUSE, calls.UNPUBLISH, times=None, status=Status.NOT_FOUND
        )
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []
    world.rules.check()


@pytest.mark.parametrize("volume", [inline(), claimed()], ids=["inline", "claimed"])
async def test_what_is_mounted_stays_until_the_driver_knows_it_again(
    world: World, volume: Volume, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, volume))
        mounted = world.mounter.mounts()
        world.driver.faults.add(CsiFaultKind.REFUSE, calls.UNPUBLISH, status=Status.NOT_FOUND)
        with pytest.raises(VolumeError, match="code = NotFound"):
            await world.volumes.unmount(A)
        assert world.mounter.mounts() == mounted
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []
    world.rules.check()


async def test_a_volume_that_does_not_exist_was_not_staged(
    world: World, autojump_clock: MockClock
) -> None:
    """Also if the driver was away at first, so that nobody knows what it has done."""
    world.driver.faults.add(CsiFaultKind.ERROR, calls.STAGE, times=2)
    for method in (calls.STAGE, calls.UNSTAGE):
        world.driver.faults.add(CsiFaultKind.REFUSE, method, times=None, status=Status.NOT_FOUND)
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(pod_of(A, claimed()))
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []


async def test_what_is_staged_stays_until_the_driver_knows_it_again(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        world.driver.faults.add(CsiFaultKind.REFUSE, calls.UNSTAGE, status=Status.NOT_FOUND)
        await world.volumes.unmount(A)
        assert len(world.mounter.mounts()) == 1
        await world.volumes.unused.clean()
    assert world.left_on_disk() == []
    world.rules.check()


async def test_without_its_driver_a_volume_waits_for_it(
    world: World, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(3):
        await world.volumes.mount(pod_of(A, claimed(), inline("b")))
    assert sorted(set(world.events.texts)) == [
        'FailedMount: MountVolume.MountDevice failed for volume "pv" : kubernetes.io/csi: '
        "attacher.MountDevice failed to create newCsiDriverClient: driver name "
        "fake.csi.example.org not found in the list of registered CSI drivers",
        'FailedMount: MountVolume.SetUp failed for volume "b" : kubernetes.io/csi: '
        "mounter.SetUpAt failed to get CSI client: driver name fake.csi.example.org not found in "
        "the list of registered CSI drivers",
    ]
    await world.volumes.unmount(A)
    assert world.left_on_disk() == []


@pytest.mark.parametrize("volume", [inline(), claimed()], ids=["inline", "claimed"])
async def test_a_volume_is_set_up_as_soon_as_its_driver_registers(
    world: World, volume: Volume, autojump_clock: MockClock
) -> None:
    """Its next attempt would be a minute later, and after the pod's time is over."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.volumes.mount, pod_of(A, volume))
        await trio.sleep(70)
        async with world.running():
            await trio.sleep(0.1)
            assert len(world.rules.published()) == 1
            assert nursery.child_tasks == frozenset()


async def test_another_driver_ends_no_wait(world: World, autojump_clock: MockClock) -> None:
    with trio.move_on_after(70):
        await world.volumes.mount(pod_of(A, inline()))
    before = len(world.events.texts)
    with trio.move_on_after(50):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.volumes.mount, pod_of(A, inline()))
            await trio.sleep(10)
            world.csi.drivers.value = {"other": Driver("other", "/other.sock", "node")}
    assert len(world.events.texts) == before


async def test_a_volume_is_tried_again_as_soon_as_its_pod_is_told_of_a_change(
    world: World, autojump_clock: MockClock
) -> None:
    world.objects.put(driver_object(volumeLifecycleModes=["Persistent"]))
    async with world.running(), trio.open_nursery() as nursery:
        nursery.start_soon(world.volumes.mount, pod_of(A, inline()))
        await trio.sleep(70)
        world.objects.put(driver_object())
        world.volumes.retry(B)
        await trio.sleep(1)
        assert world.rules.published() == {}
        world.volumes.retry(A)
        await trio.sleep(0.1)
        assert len(world.rules.published()) == 1
        assert nursery.child_tasks == frozenset()


async def test_a_lost_record_of_an_unmounted_volume_is_no_obstacle(
    world: World, autojump_clock: MockClock
) -> None:
    """As after a power cut: the Go kubelet writes records without a sync."""
    directory = world.root / "pods/u-a/volumes/kubernetes.io~csi/pv"
    (directory / "mount").mkdir(parents=True)
    (directory / "vol_data.json").write_text("")
    async with world.running():
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"driverName": "../../../etc", "volumeHandle": "x"}',
        b'{"driverName": 5, "volumeHandle": "x"}',
        b'{"driverName": "fake.csi.example.org"}',
        b"\xff" * 100_000,
        b"[" * 60_000,
    ],
)
async def test_a_damaged_record_leads_nowhere(
    world: World, content: bytes, autojump_clock: MockClock
) -> None:
    for directory in (
        world.root / "pods/u-a/volumes/kubernetes.io~csi/pv",
        world.root / "plugins/kubernetes.io/csi/fake.csi.example.org/0123",
    ):
        directory.mkdir(parents=True)
        (directory / "vol_data.json").write_bytes(content)
    async with world.running():
        await world.volumes.unmount(A)
        await world.volumes.unused.clean()
    assert world.left_on_disk() == []
    assert world.rules.log == []


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                CsiFaultKind.ERROR,
                CsiFaultKind.REFUSE,
                CsiFaultKind.SLOW,
                CsiFaultKind.HANG,
                CsiFaultKind.GOES_ON,
                CsiFaultKind.LOST_REPLY,
            ]
        ),
        st.sampled_from([calls.STAGE, calls.UNSTAGE, calls.PUBLISH, calls.UNPUBLISH]),
        st.sampled_from([Status.INTERNAL, Status.UNAVAILABLE, Status.ABORTED]),
        st.sampled_from([0.1, 1.0, 5.0]),
    ),
    max_size=4,
)
# What happens to the pods: a pod starts or ends, the agent is replaced in the middle of it all.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "restart", "sweep"]),
        st.sampled_from(["u-a", "u-b", "u-c"]),
        st.sampled_from([0.0, 0.3, 2.0, 200.0]),
    ),
    min_size=1,
    max_size=8,
)


class _Story:
    """Three pods that share a volume; each is started and ended as its worker does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wanted: set[str] = set()
        self.scopes: dict[str, trio.CancelScope] = {}

    async def _mount(self, uid: str) -> None:
        made = pod_of(uid, claimed(), inline("scratch"), empty_dir("tmp"))
        while True:
            try:
                await self.world.volumes.mount(made)
            except VolumeError:
                await trio.sleep(1)
            else:
                return

    async def _unmount(self, uid: str) -> None:
        while True:
            try:
                await self.world.volumes.unmount(PodUid(uid))
            except VolumeError:
                await trio.sleep(1)
            else:
                return

    async def work(self, uid: str) -> None:
        """Do what a worker does for a pod, until cancelled."""
        with trio.CancelScope() as self.scopes[uid]:
            await (self._mount(uid) if uid in self.wanted else self._unmount(uid))


async def _run(story: _Story, steps: list[tuple[str, str, float]]) -> None:
    world = story.world
    async with trio.open_nursery() as agent:
        for action, uid, pause in steps:
            if action == "restart":
                agent.cancel_scope.cancel()
                break
            if action == "sweep":
                with contextlib.suppress(VolumeError):  # the next sweep tries again
                    await world.volumes.unused.clean()
            else:
                (story.wanted.add if action == "start" else story.wanted.discard)(uid)
                if uid in story.scopes:
                    story.scopes[uid].cancel()
                    await trio.sleep(0.01)
                agent.start_soon(story.work, uid)
            await trio.sleep(pause)
        else:
            agent.cancel_scope.cancel()


@example(  # a sweep takes a directory without a record that is about to be used again
    [
        (CsiFaultKind.ERROR, calls.STAGE, Status.INTERNAL, 0.1),
        (CsiFaultKind.HANG, calls.STAGE, Status.INTERNAL, 5.0),
    ],
    [
        ("start", "u-a", 0.3),
        ("restart", "u-a", 2.0),
        ("start", "u-b", 0.0),
        ("sweep", "u-a", 0.3),
        ("restart", "u-a", 0.0),
    ],
)
@example(  # the call that undoes the stage fails, and hangs when it is repeated
    [
        (CsiFaultKind.ERROR, calls.UNSTAGE, Status.INTERNAL, 0.1),
        (CsiFaultKind.HANG, calls.UNSTAGE, Status.INTERNAL, 0.1),
    ],
    [("start", "u-a", 0.0)],
)
@given(FAULTS, STEPS)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_nothing_is_left_and_no_rule_broken(
    faults: list[tuple[CsiFaultKind, str, Status, float]], steps: list[tuple[str, str, float]]
) -> None:
    async def story(root: Path) -> None:
        world = World(root)
        world.objects.put(*persistent())
        for kind, method, status, delay in faults:
            world.driver.faults.add(kind, method, status=status, delay=delay)
        told, left = _Story(world), list(steps)
        while left:
            names = [action for action, _, _ in left]
            length = names.index("restart") + 1 if "restart" in names else len(left)
            async with world.running():
                await _run(told, left[:length])
            left = left[length:]
            told.scopes.clear()
            world.restart()
        async with world.running():
            with trio.fail_after(3000):
                for uid in sorted(told.wanted):
                    await told._mount(uid)
                if told.wanted:
                    assert len(world.rules.published()["vol-1"]) >= len(told.wanted)
                for uid in ("u-a", "u-b", "u-c"):
                    await told._unmount(uid)
                while world.left_on_disk():
                    await trio.sleep(60)
                    with contextlib.suppress(VolumeError):
                        await world.volumes.unused.clean()
        assert world.rules.published() == {}
        assert world.rules.staged() == {}
        world.rules.check()

    with tempfile.TemporaryDirectory() as directory:
        trio.run(story, Path(directory), clock=MockClock(autojump_threshold=0))


async def test_volumes_of_other_drivers_are_not_asked_for(
    world: World, autojump_clock: MockClock
) -> None:
    world.objects.put(driver_object(volumeLifecycleModes=None))
    async with world.running():
        with trio.move_on_after(1):
            await world.volumes.mount(pod_of(A, inline()))
    assert world.rules.log == []


@pytest.mark.parametrize("others", [0, 1])
async def test_a_record_that_is_damaged_while_the_agent_runs_is_recalled(
    world: World, others: int, autojump_clock: MockClock
) -> None:
    """A driver that counts its publishes would refuse to unstage the volume otherwise."""
    world.objects.put(*persistent("more", "vol-2"))
    volumes = [claimed(), claimed("more", "more")][: others + 1]
    record = world.root / "pods/u-a/volumes/kubernetes.io~csi/pv/vol_data.json"
    async with world.running():
        await world.volumes.mount(pod_of(A, *volumes))
        record.write_text("{")
        with capture_logs() as logs:
            await world.volumes.unmount(A)
    (told,) = [entry for entry in logs if entry["event"] == "csi.record_lost"]
    assert str(record) in told["problem"]
    assert told["asks_driver"]
    assert world.left_on_disk() == []
    assert world.rules.staged() == {}
    world.rules.check()


async def test_a_record_that_is_damaged_between_agents_can_be_repaired(
    world: World, autojump_clock: MockClock
) -> None:
    """The pod stays because the target is not empty without the mount."""
    record = world.root / "pods/u-a/volumes/kubernetes.io~csi/pv/vol_data.json"
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
    good = record.read_text()
    record.write_text("{")
    world.restart()
    async with world.running():
        with capture_logs() as logs, pytest.raises(VolumeError, match="Directory not empty"):
            await world.volumes.unmount(A)
        (told,) = [entry for entry in logs if entry["event"] == "csi.record_lost"]
        assert str(record) in told["problem"]
        assert not told["asks_driver"]
        record.write_text(good)
        for file in (record.parent / "mount").iterdir():  # the content, which no mount hides here
            file.unlink()
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []
    assert world.rules.staged() == {}
    world.rules.check()
