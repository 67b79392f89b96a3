"""Orphaned directories are reclaimed side by side, with a limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import Meter, PodUid
from kubelet_trio.pods import OrphanDirectories
from kubelet_trio.volumes import VolumeError

HANGS = 120.0  # seconds: the deadline of a driver's call


@dataclass
class Node:
    """The directories of pods without a worker; a driver hangs with the volumes of some."""

    on_disk: set[PodUid]
    hanging: set[PodUid] = field(default_factory=set)
    at_once: int = 0
    most: int = 0
    has_owner: bool = False

    async def pods_on_disk(self) -> frozenset[PodUid]:
        return frozenset(self.on_disk)

    async def unmount(self, uid: PodUid) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if uid in self.hanging:
                await trio.sleep(HANGS)
                raise VolumeError("data", "context deadline exceeded")
        finally:
            self.at_once -= 1

    async def remove(self, uid: PodUid) -> None:
        self.on_disk.remove(uid)

    def is_owned(self, uid: PodUid) -> bool:
        return self.has_owner

    @contextmanager
    def reclaiming(self, uid: PodUid) -> Iterator[bool]:
        yield not self.is_owned(uid)


def orphans(node: Node, meter: Meter) -> OrphanDirectories:
    services = SimpleNamespace(volumes=node, records=node, meter=meter)
    return OrphanDirectories(cast("Any", services), cast("Any", node))


async def test_a_volume_that_hangs_delays_no_other_directory(autojump_clock: MockClock) -> None:
    hanging = {PodUid(f"a-{n}") for n in range(5)}
    node, meter = Node({*hanging, PodUid("b"), PodUid("c")}, hanging), Meter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(orphans(node, meter).sweep)
        await trio.sleep(1)
        assert node.on_disk == hanging
    assert trio.current_time() == pytest.approx(HANGS)
    assert list(meter.gauges("kubelet_orphan_pod_cleaned_volumes")) == [((), 2)]
    assert list(meter.gauges("kubelet_orphan_pod_cleaned_volumes_errors")) == [((), 5)]


async def test_not_all_directories_are_reclaimed_at_the_same_time(
    autojump_clock: MockClock,
) -> None:
    uids = {PodUid(f"u-{n}") for n in range(100)}
    node = Node(set(uids), set(uids))
    await orphans(node, Meter()).sweep()
    assert 1 < node.most <= 16


async def test_a_directory_with_an_owner_stays() -> None:
    node = Node({PodUid("a")}, has_owner=True)
    await orphans(node, Meter()).sweep()
    assert node.on_disk == {PodUid("a")}
