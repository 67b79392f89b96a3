"""The whole agent on the embedded runtime, in this process or as a program of its own.

    python -m tests.cri.process.agent_program <directory> [--allow-root]

runs the manifests in `<directory>/manifests` and keeps what it knows of the pods in
`<directory>/pods.json`, until SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from kubelet_trio.agent import Agent, AgentSettings, Seams, make_agent
from kubelet_trio.containers import NodeSettings
from kubelet_trio.cri import ProcessRuntime
from kubelet_trio.model import PodUid
from kubelet_trio.pleg import PidfdExitWaiter
from kubelet_trio.pods import BackOffPolicy, load_records
from kubelet_trio.sources import FileSource
from kubelet_trio.supervision import ChildSpec
from kubelet_trio.testing import FakeMounter


class _NoCgroups:
    async def remove(self, uid: PodUid) -> None:
        await trio.lowlevel.checkpoint()


def process_agent(base: Path, *, allow_root: bool, **node_fields: Any) -> Agent:
    """Return an agent with everything below `base`; it mounts nothing and makes no cgroups.

    `node_fields` are further fields of its NodeSettings.
    """
    runtime = ProcessRuntime(base / "root", allow_root=allow_root)
    node = NodeSettings(
        node_name="node",
        hostname="node",
        root_dir=base / "root",
        pod_logs_dir=base / "logs",
        container_logs_dir=base / "links",
        host_ips=("127.0.0.1",),
        cgroups_per_qos=False,
        **node_fields,
    )
    seams = Seams(
        runtime=runtime,
        connection=ChildSpec("connection", runtime.run),
        mounter=FakeMounter(),
        cgroups=lambda _driver: _NoCgroups(),
        sources=(FileSource(base / "manifests", "node"),),
        exit_waiter=PidfdExitWaiter(),
    )
    settings = AgentSettings(node, "process", crash_back_off=BackOffPolicy(base=0.1, cap=1.0))
    return make_agent(settings, seams, load_records(node.root_dir / "pods"))


@asynccontextmanager
async def open_agent(base: Path, *, allow_root: bool, **node_fields: Any) -> AsyncIterator[Agent]:
    """Run an agent; leaving stops it, and no container."""
    agent = process_agent(base, allow_root=allow_root, **node_fields)
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.run)
        yield agent
        agent.stop()


async def _write_pods(agent: Agent, path: Path) -> None:
    async for pods in agent.pods.eventual_values():
        path.with_suffix(".new").write_bytes(msgspec.json.encode(list(pods.values())))
        path.with_suffix(".new").rename(path)


async def main(base: Path, *, allow_root: bool) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with open_agent(base, allow_root=allow_root) as agent:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write_pods, agent, base / "pods.json")
                async for _ in signals:
                    nursery.cancel_scope.cancel()


if __name__ == "__main__":
    os.umask(0o022)
    trio.run(lambda: main(Path(sys.argv[1]), allow_root="--allow-root" in sys.argv))
