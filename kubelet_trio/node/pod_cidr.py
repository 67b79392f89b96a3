"""Sends the node's pod CIDR to the runtime (UpdateRuntimeConfig), each time it changes.

containerd with a CNI `conf_template` writes its network configuration from it, and has none before.
The configured range comes first, then the node's `spec.podCIDRs`, separated by commas. A failed
call is repeated. Source: updatePodCIDR in kubelet_network.go.
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
    """Keeps the runtime's pod CIDR up to date. One task runs it."""

    def __init__(self, update: Callable[[str], Awaitable[None]], configured: str = "") -> None:
        """Send with `update`; `configured` is in force until the node has a range."""
        self._update = update
        self._wanted: AsyncValue[str] = AsyncValue(configured)

    def want(self, node: Node) -> None:
        """Use the range of the node's object, if it has one. Never blocks."""
        cidrs = (node.spec.podCIDRs if node.spec is not None else None) or ()
        if cidrs:
            self._wanted.value = ",".join(cidrs)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send changes until cancelled. Ready at once, with or without a runtime."""
        task_status.started()
        sent = ""
        while True:
            wanted = await self._wanted.wait_value(lambda cidr, sent=sent: cidr != sent)
            await self._send(wanted)
            sent = wanted

    async def _send(self, cidr: str) -> None:
        """Send one range; return when the runtime has it, or a different one is wanted."""
        delay = 0.0
        while self._wanted.value == cidr:
            try:
                await self._update(cidr)
            # Not repeated: the runtime does not implement the call.
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
