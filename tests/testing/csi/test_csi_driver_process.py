"""The test drivers as processes: real mounts, on our gRPC server and on grpcio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubelet_trio.grpc import GRPCError, Status, open_channel
from kubelet_trio.plugins.generated import pluginregistration as registration
from kubelet_trio.plugins.generated.pluginregistration.client import RegistrationStub
from kubelet_trio.testing.csi import CsiFaultKind, NodeFeature, calls
from kubelet_trio.volumes.csi.generated.csi import v1
from kubelet_trio.volumes.csi.generated.csi.v1.client import NodeStub
from tests.harness.csi import DRIVER, CsiDriver, DriverConfig
from tests.harness.csi_storage import is_mounted
from tests.volumes.conftest import mount_refusal


@dataclass
class Bed:
    driver: CsiDriver
    staging: Path
    target: Path

    @asynccontextmanager
    async def node(self) -> AsyncIterator[NodeStub]:
        async with open_channel(str(self.driver.endpoint)) as channel:
            yield NodeStub(channel)

    async def stage(self, node: NodeStub, volume_id: str, *, is_block: bool = False) -> None:
        await node.node_stage_volume(
            v1.NodeStageVolumeRequest(
                volume_id=volume_id,
                staging_target_path=str(self.staging),
                volume_capability=capability(is_block=is_block),
            ),
            timeout=30,
        )

    async def publish(self, node: NodeStub, volume_id: str, *, is_block: bool = False) -> None:
        await node.node_publish_volume(
            v1.NodePublishVolumeRequest(
                volume_id=volume_id,
                staging_target_path=str(self.staging),
                target_path=str(self.target),
                volume_capability=capability(is_block=is_block),
            ),
            timeout=30,
        )

    async def undo(self, node: NodeStub, volume_id: str) -> None:
        await node.node_unpublish_volume(
            v1.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=str(self.target)),
            timeout=30,
        )
        await node.node_unstage_volume(
            v1.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=str(self.staging)),
            timeout=30,
        )


def capability(*, is_block: bool = False) -> v1.VolumeCapability:
    mode = v1.VolumeCapabilityAccessMode(mode=v1.VolumeCapabilityAccessModeMode(1))
    if is_block:
        return v1.VolumeCapability(block=v1.VolumeCapabilityBlockVolume(), access_mode=mode)
    return v1.VolumeCapability(mount=v1.VolumeCapabilityMountVolume(), access_mode=mode)


@pytest.fixture(params=[False, True], ids=["ours", "grpcio"])
def bed(short_path: Path, request: pytest.FixtureRequest) -> Iterator[Bed]:
    if refusal := mount_refusal():
        pytest.skip(refusal)
    bed = Bed(
        CsiDriver(
            short_path / "driver", short_path / "root", DriverConfig(is_grpcio=request.param)
        ),
        short_path / "staging",
        short_path / "pod" / "mount",
    )
    bed.staging.mkdir()
    bed.target.parent.mkdir()
    with bed.driver:
        yield bed


@pytest.mark.parametrize("kind", ["dir", "tmpfs", "ext4"])
async def test_a_volume_is_mounted_and_keeps_its_data(bed: Bed, kind: str) -> None:
    volume = f"{kind}-1"
    async with bed.node() as node:
        for life in range(2):
            await bed.stage(node, volume)
            await bed.publish(node, volume)
            assert is_mounted(bed.target)
            mark = bed.target / "mark"
            assert mark.exists() == (life == 1 and kind != "tmpfs")
            mark.write_text("data")
            usage = await node.node_get_volume_stats(
                v1.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=str(bed.target))
            )
            assert usage.usage[0].total > 1 << 20
            await bed.undo(node, volume)
            assert not is_mounted(bed.staging)
            assert not bed.target.exists()
    bed.driver.wait_clean()


async def test_a_block_volume_is_a_device(bed: Bed) -> None:
    async with bed.node() as node:
        await bed.stage(node, "raw", is_block=True)
        await bed.publish(node, "raw", is_block=True)
        assert bed.target.is_block_device()
        await bed.undo(node, "raw")
    bed.driver.wait_clean()


async def test_what_it_can_and_who_it_is(bed: Bed) -> None:
    async with bed.node() as node:
        info = await node.node_get_info(v1.NodeGetInfoRequest())
        assert info.node_id == "node"
        bed.driver.set_features([NodeFeature.GET_VOLUME_STATS])
        able = await node.node_get_capabilities(v1.NodeGetCapabilitiesRequest())
        names = [found.rpc.type.name for found in able.capabilities if found.rpc is not None]
        assert names == ["GET_VOLUME_STATS"]
    async with open_channel(str(bed.driver.registration)) as channel:
        plugin = await RegistrationStub(channel).get_info(registration.InfoRequest())
    assert (plugin.name, plugin.endpoint) == (DRIVER, str(bed.driver.endpoint))


async def test_a_violation_outlives_the_driver(bed: Bed) -> None:
    async with bed.node() as node:
        with pytest.raises(GRPCError, match="FAILED_PRECONDITION"):
            await bed.publish(node, "dir-1")
    bed.driver.restart()
    with pytest.raises(AssertionError, match="without a successful stage"):
        bed.driver.check()


@pytest.mark.parametrize(
    ("kind", "is_left"), [(CsiFaultKind.DIE_BEFORE, False), (CsiFaultKind.DIE_AFTER, True)]
)
async def test_it_continues_after_a_death_in_a_call(
    bed: Bed, kind: CsiFaultKind, is_left: bool
) -> None:
    bed.driver.fault(kind, calls.PUBLISH)
    async with bed.node() as node:
        await bed.stage(node, "dir-1")
        with pytest.raises(GRPCError) as caught:
            await bed.publish(node, "dir-1")
        assert caught.value.status is Status.UNAVAILABLE
    bed.driver.wait_dead()
    assert is_mounted(bed.target) is is_left
    bed.driver.start()
    async with bed.node() as node:
        await bed.publish(node, "dir-1")
        await bed.undo(node, "dir-1")
    bed.driver.wait_clean()


async def test_a_call_that_its_caller_gives_up_ends(bed: Bed) -> None:
    bed.driver.fault(CsiFaultKind.HANG, calls.STAGE)
    async with bed.node() as node:
        with pytest.raises(GRPCError) as caught:
            await node.node_stage_volume(
                v1.NodeStageVolumeRequest(
                    volume_id="dir-1",
                    staging_target_path=str(bed.staging),
                    volume_capability=capability(),
                ),
                timeout=0.2,
            )
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        bed.driver.wait_idle()
        await bed.stage(node, "dir-1")
        await bed.publish(node, "dir-1")
        await bed.undo(node, "dir-1")
    bed.driver.wait_clean()
