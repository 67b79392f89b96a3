"""Reads the node's object again before its labels would refuse a pod."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Node, Pod

from kubelet_trio.kube import KubeApi, KubeError, KubeUnavailableError
from kubelet_trio.model import get_logger
from kubelet_trio.node import NodeObject
from kubelet_trio.pods import matches_node

log = get_logger()

_LIMIT = 5.0  # seconds; all new pods wait meanwhile


@dataclass(frozen=True, slots=True)
class FreshNode:
    """Keeps the node's object as new as the pods that the scheduler has placed by it.

    A label may be a moment old when a pod is bound because of it, and the watch of the node behind
    that of the pods. A refusal is final. Source: generalFilter in pkg/kubelet/lifecycle.
    """

    api: KubeApi
    name: str
    node: NodeObject

    async def meet(self, pods: Sequence[Pod]) -> None:
        """Take new pods into account, before they are admitted; never fails."""
        node = self.node.value.value
        if node is None or all(_is_matched(pod, self.name, node) for pod in pods):
            return
        try:
            with trio.fail_after(_LIMIT):
                self.node.put(await self.api.get(Node, self.name))
        except (KubeError, KubeUnavailableError, trio.TooSlowError) as exc:
            error = str(exc) or f"no answer within {_LIMIT:g}s"
            log.warning("node.not_read_again", node=self.name, error=error)


def _is_matched(pod: Pod, name: str, node: Node) -> bool:
    labels = (node.metadata.labels if node.metadata is not None else None) or {}
    # One that was admitted before this start is not judged again.
    is_taken = pod.status is not None and pod.status.startTime is not None
    return is_taken or matches_node(pod, name, labels)
