"""An `ApiNode` whose agent is a process of its own, to be killed with SIGKILL."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.harness.agent import Agent
from tests.harness.api_node import CONFIG, ApiNode, has_ready_node
from tests.harness.containerd import Containerd
from tests.harness.fake_api import serve_api, write_kubeconfig
from tests.harness.machine import PATIENCE
from tests.harness.pods import NODE, Json


class ProcessNode(ApiNode):
    """A node of a fake API server; the agent talks HTTP with it."""

    def __init__(self, base: Path, containerd: Containerd, config: Json | None = None) -> None:
        kubeconfig = base / "kubeconfig"
        self.agent = Agent(
            base,
            containerd,
            config={**CONFIG, **(config or {})},
            arguments=("--kubeconfig", str(kubeconfig), "--crash-loop-backoff-base", "1s"),
        )
        super().__init__(base, containerd)
        write_kubeconfig(kubeconfig, self._port)

    def start(self) -> None:
        self.agent.start()
        trio.from_thread.run(self._wait_ready, trio_token=self._token)

    def kill(self) -> None:
        """Kill the agent with SIGKILL; what runs goes on."""
        self.agent.kill()

    def close(self) -> None:
        self.agent.end()
        super().close()

    async def _open(self) -> None:
        self._port: int = await self._nursery.start(serve_api, self.kube.node(NODE))

    async def _wait_ready(self) -> None:
        with trio.fail_after(60 * PATIENCE):
            await self.kube.wait_until(has_ready_node)
        self._untaint()
