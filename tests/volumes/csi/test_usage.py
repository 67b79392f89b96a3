"""What a driver reports of its volumes, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.grpc import GRPCError, Server, Status
from kubelet_trio.server import open_unix
from kubelet_trio.stats import DriverStatsError, Filesystem
from kubelet_trio.volumes.csi.drivers import DriverTable
from kubelet_trio.volumes.csi.generated.csi import v1
from kubelet_trio.volumes.csi.generated.csi.v1.server import NodeBase
from kubelet_trio.volumes.csi.types import Capability
from kubelet_trio.volumes.csi.usage import DriverUsage, reported

BYTES, INODES = v1.VolumeUsageUnit.BYTES, v1.VolumeUsageUnit.INODES


def usage(unit: v1.VolumeUsageUnit, available: int, total: int, used: int) -> v1.VolumeUsage:
    return v1.VolumeUsage(unit=unit, available=available, total=total, used=used)


def answer(*usages: v1.VolumeUsage, bad: str | None = None) -> v1.NodeGetVolumeStatsResponse:
    condition = None if bad is None else v1.VolumeCondition(abnormal=bool(bad), message=bad)
    return v1.NodeGetVolumeStatsResponse(usage=list(usages), volume_condition=condition)


SIZE, FILES = usage(BYTES, 60, 100, 40), usage(INODES, 7, 10, 3)


@pytest.mark.parametrize(
    ("response", "tells", "expected"),
    [
        (
            answer(SIZE, FILES),
            False,
            Filesystem(0.0, 100, 60, 40, inodes=10, inodes_free=7, inodes_used=3),
        ),
        # A block volume may have its capacity alone.
        (answer(usage(BYTES, 0, 100, 0)), False, Filesystem(0.0, 100, 0, 0)),
        (answer(usage(BYTES, -1, 100, -5)), False, Filesystem(0.0, 100)),
        (answer(usage(v1.VolumeUsageUnit.UNKNOWN, 1, 2, 3)), False, Filesystem(0.0)),
        (answer(SIZE, bad="gone"), False, Filesystem(0.0, 100, 60, 40)),
        (
            answer(SIZE, bad="gone"),
            True,
            Filesystem(0.0, 100, 60, 40, abnormal=True, message="gone"),
        ),
        (answer(bad=""), True, Filesystem(0.0, abnormal=False)),
        (answer(), True, Filesystem(0.0, abnormal=False)),
    ],
)
def test_an_answer_becomes_figures(
    response: v1.NodeGetVolumeStatsResponse, tells: bool, expected: Filesystem
) -> None:
    assert reported(response, tells_condition=tells) == expected


def test_an_answer_without_usage_is_an_error_unless_it_has_a_condition() -> None:
    with pytest.raises(DriverStatsError, match="usage is nil"):
        reported(answer(), tells_condition=False)


NUMBERS = st.integers(-(2**63), 2**63 - 1)
USAGES = st.builds(usage, st.sampled_from(v1.VolumeUsageUnit), NUMBERS, NUMBERS, NUMBERS)


@given(st.lists(USAGES, min_size=1), st.text())
def test_no_figure_is_negative_and_no_message_is_long(
    usages: list[v1.VolumeUsage], message: str
) -> None:
    fs = reported(answer(*usages, bad=message * 100), tells_condition=True)
    figures = fs.capacity, fs.available, fs.used, fs.inodes, fs.inodes_free, fs.inodes_used
    assert all(figure is None or figure >= 0 for figure in figures)
    assert len(fs.message) <= 1024


class Driver(NodeBase):
    """A driver that measures its volumes, or fails."""

    def __init__(self) -> None:
        self.requests: list[v1.NodeGetVolumeStatsRequest] = []
        self.can = [Capability.GET_VOLUME_STATS]
        self.failure: GRPCError | None = None

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id="n")

    async def node_get_capabilities(
        self, request: v1.NodeGetCapabilitiesRequest
    ) -> v1.NodeGetCapabilitiesResponse:
        return v1.NodeGetCapabilitiesResponse(
            capabilities=[
                v1.NodeServiceCapability(
                    rpc=v1.NodeServiceCapabilityRpc(type=v1.NodeServiceCapabilityRpcType(one))
                )
                for one in self.can
            ]
        )

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        return answer(SIZE)


async def test_a_registered_driver_is_asked(tmp_path: Path) -> None:
    driver, table = Driver(), DriverTable()
    able = DriverUsage(table.drivers, table.client)
    socket = str(tmp_path / "csi.sock")
    assert able.measuring == frozenset()
    with pytest.raises(DriverStatsError, match="not found in the list of registered CSI drivers"):
        await able.volume_stats("d", "h", "/p")
    async with trio.open_nursery() as nursery:
        listener = open_unix(Path(socket))
        await nursery.start(Server([driver]).serve, [listener])
        await nursery.start(table.run_plugin, "d", socket, ["1.0.0"])
        assert able.measuring == {"d"}
        assert await able.volume_stats("d", "h", "/p") == Filesystem(0.0, 100, 60, 40)
        assert driver.requests == [v1.NodeGetVolumeStatsRequest(volume_id="h", volume_path="/p")]
        driver.failure = GRPCError(Status.NOT_FOUND, "no volume h")
        with pytest.raises(DriverStatsError, match="code = NotFound desc = no volume h"):
            await able.volume_stats("d", "h", "/p")
        driver.can = []
        await table.refresh("d")
        assert able.measuring == frozenset()
        nursery.cancel_scope.cancel()
