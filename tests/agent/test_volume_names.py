"""The names of volumes on disk are kept as long as their pods."""

from __future__ import annotations

from kubelet_trio.agent.volumes import VolumeNames
from kubelet_trio.model import PodUid
from tests.volumes.csi.world import Objects, claimed, persistent, pod_of


async def test_a_claim_is_read_once_while_its_pod_is_there() -> None:
    objects = Objects()
    objects.put(*persistent())
    names = VolumeNames(objects)
    assert await names.of_pod(pod_of("u-1", claimed())) == {"pv": "data"}
    objects.known.clear()
    names.keep({PodUid("u-1")})
    assert await names.of_pod(pod_of("u-1", claimed())) == {"pv": "data"}
    names.keep(())
    assert await names.of_pod(pod_of("u-1", claimed())) == {}
