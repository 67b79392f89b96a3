"""The volumes of asynchronous plugins: what is kept of a pod, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest
import trio
from lightkube.models.core_v1 import Volume
from trio.testing import MockClock

from kubelet_trio.model import inline_offload, pod_uid
from kubelet_trio.volumes import VolumeError
from kubelet_trio.volumes.async_volumes import AsyncVolumes
from kubelet_trio.volumes.spec import AsyncKind, VolumeSpec
from tests.volumes.make import pod


def no_plugin() -> NoReturn:
    pytest.fail("the volume could not be read, so nothing is set up")


async def test_nothing_is_kept_of_a_pod_whose_volume_was_never_tried(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its claim cannot be read any more, so that only its back-off shows that it was there."""
    volumes = AsyncVolumes(
        [AsyncKind("csi", "kubernetes.io~csi".__eq__, lambda: False, no_plugin)], inline_offload
    )
    made = pod(Volume(name="data"))
    uid = pod_uid(made)

    async def read(name: str) -> VolumeSpec:
        await trio.lowlevel.checkpoint()
        raise VolumeError(name, "the claim is gone")

    async def set_up_quick(_names: Sequence[str]) -> None:
        pytest.fail("there is no such volume")

    with pytest.raises(VolumeError, match="unmounted volumes"):
        await volumes.mount(
            made, [VolumeSpec(made, "data", "csi", None, "pv")], read, set_up_quick, []
        )
    assert volumes.is_user(uid)
    await volumes.tear_down(uid, tmp_path, ())
    assert not volumes.is_user(uid)
