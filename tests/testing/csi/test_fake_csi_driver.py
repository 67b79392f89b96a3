"""The fake CSI driver over real gRPC: answers, mounts, faults, death."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kubelet_trio.grpc import Channel, GRPCError, Status, open_channel
from kubelet_trio.plugins.generated import pluginregistration as registration
from kubelet_trio.plugins.generated.pluginregistration.client import RegistrationStub
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing import FakeMounter
from kubelet_trio.testing.csi import (
    CsiCall,
    CsiDriverFacts,
    CsiFaultKind,
    CsiRule,
    CsiRules,
    FakeCsiDriver,
    FakeStorage,
    calls,
)
from kubelet_trio.volumes.csi.generated.csi import v1
from kubelet_trio.volumes.csi.generated.csi.v1.client import IdentityStub, NodeStub
from tests.harness.csi_services import serve_csi


class Bed:
    """A driver, paths for one volume, and calls for it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.staging, self.target = base / "staging", base / "pod" / "mount"
        self.staging.mkdir()
        self.target.parent.mkdir()
        self.mounter = FakeMounter()
        self.rules = CsiRules()
        self.driver = FakeCsiDriver(self.rules, FakeStorage(self.mounter))
        self.node: NodeStub

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Channel]:
        path = self.base / "csi.sock"
        path.unlink(missing_ok=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_csi, self.driver, [open_unix(path)])
            async with open_channel(str(path)) as channel:
                self.node = NodeStub(channel)
                yield channel
            nursery.cancel_scope.cancel()

    async def stage(self) -> None:
        await self.node.node_stage_volume(
            v1.NodeStageVolumeRequest(
                volume_id="vol",
                staging_target_path=str(self.staging),
                volume_capability=capability(),
            ),
            timeout=5,
        )

    async def give_up_stage(self) -> None:
        """Call, and give the call up once the driver has begun with it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.stage)
            await self.driver.wait_until(CsiRules.pending)
            nursery.cancel_scope.cancel()

    async def publish(self, *, is_block: bool = False) -> None:
        await self.node.node_publish_volume(
            v1.NodePublishVolumeRequest(
                volume_id="vol",
                staging_target_path=str(self.staging),
                target_path=str(self.target),
                volume_capability=capability(is_block=is_block),
            ),
            timeout=5,
        )

    async def unpublish(self) -> None:
        request = v1.NodeUnpublishVolumeRequest(volume_id="vol", target_path=str(self.target))
        await self.node.node_unpublish_volume(request, timeout=5)

    async def unstage(self) -> None:
        request = v1.NodeUnstageVolumeRequest(
            volume_id="vol", staging_target_path=str(self.staging)
        )
        await self.node.node_unstage_volume(request, timeout=5)

    def mounted(self) -> list[str]:
        return [mount.path for mount in self.mounter.mounts()]


def capability(*, is_block: bool = False) -> v1.VolumeCapability:
    mode = v1.VolumeCapabilityAccessMode(mode=v1.VolumeCapabilityAccessModeMode(1))
    if is_block:
        return v1.VolumeCapability(block=v1.VolumeCapabilityBlockVolume(), access_mode=mode)
    return v1.VolumeCapability(mount=v1.VolumeCapabilityMountVolume(), access_mode=mode)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


async def failing(call: Any) -> Status:
    with pytest.raises(GRPCError) as caught:
        await call()
    return caught.value.status


async def test_a_volume_is_mounted_and_unmounted(bed: Bed) -> None:
    async with bed.served():
        await bed.stage()
        await bed.publish()
        assert bed.mounted() == [str(bed.staging), str(bed.target)]
        stats = await bed.node.node_get_volume_stats(
            v1.NodeGetVolumeStatsRequest(volume_id="vol", volume_path=str(bed.target))
        )
        assert stats.usage[0].total == 1 << 30
        grown = await bed.node.node_expand_volume(
            v1.NodeExpandVolumeRequest(
                volume_id="vol",
                volume_path=str(bed.target),
                capacity_range=v1.CapacityRange(required_bytes=5),
            )
        )
        assert grown.capacity_bytes == 5 == bed.rules.size("vol")
        await bed.unpublish()
        await bed.unstage()
    assert not bed.mounted()
    assert not bed.target.exists()
    bed.rules.check()


async def test_a_block_volume_is_a_file_at_its_target(bed: Bed) -> None:
    bed.driver.rules = CsiRules(features=())
    bed.staging = Path()
    async with bed.served():
        await bed.node.node_publish_volume(
            v1.NodePublishVolumeRequest(
                volume_id="vol",
                target_path=str(bed.target),
                volume_capability=capability(is_block=True),
            )
        )
        assert bed.target.is_file()
        await bed.unpublish()
    assert not bed.target.exists()
    bed.driver.rules.check()


async def test_a_violation_is_answered_and_recorded(bed: Bed) -> None:
    async with bed.served():
        assert await failing(bed.publish) is Status.FAILED_PRECONDITION
    assert [violation.rule for violation in bed.rules.violations] == [CsiRule.STAGED_FIRST]


async def test_it_says_who_it_is(bed: Bed) -> None:
    bed.driver.facts = CsiDriverFacts(
        "disk.example.org", "here", 7, {"zone": "a"}, endpoint="/elsewhere.sock"
    )
    async with bed.served() as channel:
        info = await NodeStub(channel).node_get_info(v1.NodeGetInfoRequest())
        assert (info.node_id, info.max_volumes_per_node) == ("here", 7)
        assert info.accessible_topology is not None
        assert info.accessible_topology.segments == {"zone": "a"}
        able = await NodeStub(channel).node_get_capabilities(v1.NodeGetCapabilitiesRequest())
        assert len(able.capabilities) == 6
        name = await IdentityStub(channel).get_plugin_info(v1.GetPluginInfoRequest())
        assert name.name == "disk.example.org"
        registrar = RegistrationStub(channel)
        plugin = await registrar.get_info(registration.InfoRequest())
        assert (plugin.type, plugin.name) == ("CSIPlugin", "disk.example.org")
        assert plugin.endpoint == "/elsewhere.sock"
        await registrar.notify_registration_status(registration.RegistrationStatus(error="no"))
        assert not bed.driver.registered.is_set()
        await registrar.notify_registration_status(
            registration.RegistrationStatus(plugin_registered=True)
        )
        assert bed.driver.registrations == ["no", ""]


async def test_faults_come_before_or_after_the_effect(bed: Bed) -> None:
    faults = bed.driver.faults
    async with bed.served():
        faults.add(CsiFaultKind.ERROR, calls.STAGE, status=Status.INTERNAL)
        assert await failing(bed.stage) is Status.INTERNAL
        assert not bed.mounted()
        faults.add(CsiFaultKind.LOST_REPLY, calls.STAGE)
        assert await failing(bed.stage) is Status.UNAVAILABLE
        assert bed.mounted() == [str(bed.staging)]
        faults.add(CsiFaultKind.REFUSE, calls.GET_INFO, status=Status.UNIMPLEMENTED)
        asked = bed.node.node_get_info
        assert await failing(lambda: asked(v1.NodeGetInfoRequest())) is Status.UNIMPLEMENTED


async def test_a_call_that_hangs_is_in_progress_until_it_is_given_up(bed: Bed) -> None:
    hang = bed.driver.faults.add(CsiFaultKind.HANG, calls.STAGE, times=None)
    async with bed.served():
        await bed.give_up_stage()
        bed.driver.faults.lift(hang)
        await bed.driver.wait_until(lambda rules: not rules.pending())
        await bed.stage()
    bed.rules.check()


async def test_a_call_may_take_effect_after_it_was_given_up(bed: Bed) -> None:
    # Long enough for the test to look in between.
    bed.driver.faults.add(CsiFaultKind.GOES_ON, calls.STAGE, delay=1)
    async with bed.served():
        await bed.give_up_stage()
        await bed.driver.wait_until(
            lambda rules: any(operation.is_abandoned for operation in rules.pending())
        )
        assert await failing(bed.stage) is Status.ABORTED
        await bed.driver.wait_until(lambda rules: not rules.pending())
        assert bed.mounted() == [str(bed.staging)]
        await bed.stage()
        await bed.publish()
    bed.rules.check()


class SlowStorage(FakeStorage):
    """Mounts in a thread, when it is let go: a cancelled caller does not stop it."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    async def stage(self, call: CsiCall) -> None:
        await trio.to_thread.run_sync(self.go.wait, 60)
        await super().stage(call)


async def test_a_call_whose_thread_goes_on_was_given_up_all_the_same(bed: Bed) -> None:
    storage = SlowStorage()
    bed.driver = FakeCsiDriver(bed.rules, storage)
    with trio.fail_after(60):
        async with bed.served():
            await bed.give_up_stage()
            await bed.driver.wait_until(
                lambda rules: any(operation.is_abandoned for operation in rules.pending())
            )
            assert await failing(bed.stage) is Status.ABORTED
            storage.go.set()
            await bed.driver.wait_until(lambda rules: not rules.pending())
            await bed.stage()
    bed.rules.check()


@pytest.mark.parametrize(
    ("kind", "is_mounted"), [(CsiFaultKind.DIE_BEFORE, False), (CsiFaultKind.DIE_AFTER, True)]
)
async def test_it_dies_in_a_call_and_continues(
    bed: Bed, kind: CsiFaultKind, is_mounted: bool
) -> None:
    bed.driver.faults.add(kind, calls.STAGE)
    async with bed.served():
        assert await failing(bed.stage) is Status.UNAVAILABLE
    assert bool(bed.mounted()) is is_mounted
    async with bed.served():
        await bed.stage()
        await bed.publish()
        await bed.unpublish()
        await bed.unstage()
    assert not bed.mounted()
    bed.rules.check()


def unpublished(path: Path) -> CsiCall:
    return CsiCall(calls.UNPUBLISH, "vol", path=str(path))


async def answered(driver: FakeCsiDriver, call: CsiCall, into: list[Status]) -> None:
    try:
        await driver.serve(call)
    except GRPCError as exc:
        into.append(exc.status)


async def test_a_call_waits_for_the_news_that_the_one_before_was_given_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rules, answers = CsiRules(), list[Status]()
    driver = FakeCsiDriver(rules)
    with rules.operation(unpublished(tmp_path)) as given_up:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answered, driver, unpublished(tmp_path), answers)
            await trio.testing.wait_all_tasks_blocked()
            given_up.abandon()
            driver._change()
    assert answers == [Status.ABORTED]
    rules.check()


async def test_two_calls_at_once_are_a_violation_even_if_the_first_ends_soon(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rules, answers = CsiRules(), list[Status]()
    driver = FakeCsiDriver(rules)
    async with trio.open_nursery() as nursery:
        with rules.operation(unpublished(tmp_path)):
            nursery.start_soon(answered, driver, unpublished(tmp_path), answers)
            await trio.testing.wait_all_tasks_blocked()
        driver._change()
    assert answers == [Status.ABORTED]
    assert [violation.rule for violation in rules.violations] == [CsiRule.ONE_AT_A_TIME]
