"""The seam between garbage collection and the node's pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, RuntimePod


class NodePods(Protocol):
    """The node's current pods. Only `wait_listed` and `wait_known` wait."""

    async def wait_listed(self) -> None:
        """Wait until the runtime was listed once."""
        ...

    async def wait_known(self) -> None:
        """Wait until every source has delivered once, and the runtime was listed once."""
        ...

    def are_known(self) -> bool:
        """Whether every source has delivered once: before, a pod that is not wanted may come."""
        ...

    def observed(self) -> Sequence[RuntimePod]:
        """Return the runtime's containers and sandboxes, as last listed."""
        ...

    def is_owned(self, uid: PodUid) -> bool:
        """Whether a source, a worker, or the runtime still has the pod."""
        ...

    def has_ended(self, uid: PodUid) -> bool:
        """Whether the pod has terminated: no container of it runs or will be started."""
        ...

    def wanted(self) -> Iterable[Pod]:
        """Return the pods that run or may still start containers."""
        ...

    def reclaiming(self, uid: PodUid) -> AbstractContextManager[bool]:
        """Prevent an orphan from starting while the block removes its leftovers.

        Yields False, without effect, if the pod has an owner.
        """
        ...

    def adopt(self, uid: PodUid) -> None:
        """Give a pod to a worker that terminates it, if it is an orphan of the runtime."""
        ...
