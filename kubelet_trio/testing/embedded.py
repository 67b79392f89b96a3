"""The fake world for an embedded kubelet: a whole agent in virtual time.

    async def test_my_program(autojump_clock, tmp_path):
        runtime = FakeRuntime(write_logs=True)
        config = KubeletConfig(root_dir=tmp_path, runtime=runtime)
        async with open_kubelet(config, world=fake_world(runtime, config)) as kubelet:
            await my_program(kubelet)
        assert runtime.violations == []

`pytest_plugin` offers the same as fixtures.
"""

from __future__ import annotations

import trio

from kubelet_trio.containers import NodeSettings, poll_watch
from kubelet_trio.embed import KubeletConfig, World, node_paths
from kubelet_trio.model import PodUid, inline_offload
from kubelet_trio.testing.clock import TrioClock
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.testing.runtime import FakeRuntime


class FakeCgroups:
    """Pod cgroups whose removal always succeeds."""

    async def remove(self, uid: PodUid) -> None:
        await trio.lowlevel.checkpoint()


def fake_world(
    runtime: FakeRuntime, config: KubeletConfig, *, mounter: FakeMounter | None = None
) -> World:
    """Return a world without threads, processes, mounts or cgroups, on trio's clock.

    Args:
        runtime: runs the containers; create it with `write_logs=True` if the test reads logs.
        config: as passed to `open_kubelet`; its directories are real.
        mounter: the mounts, if the test inspects them.
    """
    # 192.0.2.0/24 is reserved for documentation (RFC 5737).
    node = NodeSettings("node", "node", host_ips=("192.0.2.7",), resolv_conf=None)
    return World(
        runtime=runtime,
        node=node_paths(node, config),
        mounter=mounter or FakeMounter(),
        cgroups=lambda _driver: FakeCgroups(),
        exit_waiter=runtime.exit_waiter,
        clock=TrioClock(),
        offload=inline_offload,
        log_watch=poll_watch,
    )
