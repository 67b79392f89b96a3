"""The claims of running pods are looked at once a period, each pod on its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.agent.volume_sizes import VolumeSizes
from kubelet_trio.model import PodUid
from kubelet_trio.volumes import VolumeManager
from tests.agent.node import make_pod

ONE, TWO = PodUid("one"), PodUid("two")


@dataclass
class Volumes:
    """Volumes of pods; those of `hung` are being looked at for ever."""

    has_any: bool = True
    hung: str = ""
    seen: list[str] = field(default_factory=list)
    forgotten: list[PodUid] = field(default_factory=list)

    @property
    def growing(self) -> Volumes:
        return self

    async def grow(self, pod: Pod) -> None:
        assert pod.metadata is not None
        name = pod.metadata.name or ""
        self.seen.append(name)
        if name == self.hung:
            await trio.sleep_forever()

    def forget(self, uid: PodUid) -> None:
        self.forgotten.append(uid)


async def looked_at(volumes: Volumes, seconds: float) -> None:
    pods = {ONE: make_pod("one"), TWO: make_pod("two")}
    sizes = VolumeSizes(cast("VolumeManager", volumes), lambda: pods, lambda uid: uid != ONE)
    async with trio.open_nursery() as nursery:
        await nursery.start(sizes.run)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()


async def test_a_pod_that_hangs_holds_up_no_other(autojump_clock: MockClock) -> None:
    volumes = Volumes(hung="one-node")
    await looked_at(volumes, 185)
    assert sorted(volumes.seen) == ["one-node", "two-node", "two-node", "two-node"]


async def test_without_a_driver_nothing_is_read(autojump_clock: MockClock) -> None:
    volumes = Volumes(has_any=False)
    await looked_at(volumes, 185)
    assert volumes.seen == []


async def test_what_is_read_for_a_pod_that_is_gone_by_then_is_forgotten(
    autojump_clock: MockClock,
) -> None:
    """Its worker has let go of its objects before, and nobody else would."""
    volumes = Volumes()
    await looked_at(volumes, 65)
    assert volumes.forgotten == [ONE]
