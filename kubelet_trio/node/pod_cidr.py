"""Tells the runtime which addresses the node's pods get, each time they are others.

containerd with a CNI `conf_template` writes its network configuration from them, and has none
before. Source: updatePodCIDR in kubelet_network.go: the configured range first, then the
node's, `spec.podCIDRs` separated by commas. What fails is tried again; nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from lightkube.models.core_v1 import Node
from trio_util import AsyncValue

from kubelet_trio.cri import RuntimeCallError, UnsupportedCallError
from kubelet_trio.model import get_logger

log = get_logger()

_FIRST_RETRY = 1.0
_LAST_RETRY = 60.0


class PodCidr:
    """See the module. One task runs it."""

    def __init__(self, update: Callable[[str], Awaitable[None]], configured: str = "") -> None:
        """Tell `update`, UpdateRuntimeConfig; `configured` holds until the node has a range."""
        self._update = update
        self._wanted: AsyncValue[str] = AsyncValue(configured)

    def want(self, node: Node) -> None:
        """Take over the range of the node's object, if it has one. Never blocks."""
        cidrs = (node.spec.podCIDRs if node.spec is not None else None) or ()
        if cidrs:
            self._wanted.value = ",".join(cidrs)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell until cancelled. Ready at once, runtime or no runtime."""
        task_status.started()
        told = ""
        while True:
            wanted = await self._wanted.wait_value(lambda cidr, told=told: cidr != told)
            await self._tell(wanted)
            told = wanted

    async def _tell(self, cidr: str) -> None:
        """Tell one range; return once the runtime has it, or another is wanted."""
        delay = 0.0
        while self._wanted.value == cidr:
            try:
                await self._update(cidr)
            except UnsupportedCallError as exc:
                log.info("node.pod_cidr_unsupported", cidr=cidr, error=str(exc))
                return
            except RuntimeCallError as exc:
                if not delay:
                    log.warning("node.pod_cidr_failed", cidr=cidr, error=str(exc))
            else:
                log.info("node.pod_cidr", cidr=cidr)
                return
            delay = min(max(2 * delay, _FIRST_RETRY), _LAST_RETRY)
            with trio.move_on_after(delay):
                await self._wanted.wait_value(lambda wanted: wanted != cidr)
