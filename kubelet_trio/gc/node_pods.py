"""What garbage collection asks of the agent: who wants what. The one seam to the pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, RuntimePod


class NodePods(Protocol):
    """The node's pods as of now. All but `wait_known` answer at once."""

    async def wait_known(self) -> None:
        """Wait until every source has said what it wants and the runtime was listed once."""
        ...

    def observed(self) -> Sequence[RuntimePod]:
        """Return what the runtime holds of each pod, as last seen."""
        ...

    def is_owned(self, uid: PodUid) -> bool:
        """Whether a source wants the pod, a worker is at it, or the runtime holds any of it."""
        ...

    def has_ended(self, uid: PodUid) -> bool:
        """Whether the pod is over: nothing of it runs or will start again."""
        ...

    def wanted(self) -> Iterable[Pod]:
        """Return the pods that run or may still start containers."""
        ...

    def reclaiming(self, uid: PodUid) -> AbstractContextManager[bool]:
        """Keep a pod that nobody owns from starting while what is left of it goes.

        Yields False, and keeps nothing from anything, where it is somebody's.
        """
        ...

    def adopt(self, uid: PodUid) -> None:
        """Have a pod that nobody is at ended by a worker, if nobody wants it."""
        ...
