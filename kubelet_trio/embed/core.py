"""State shared by a kubelet and its pod handles: the agent, the wanted pods, and its end.

Two writers change it, both in the program's own thread and without awaiting in between: calls
of the program, and `run_handles`, a child of the agent that updates the handles.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue, wait_any

from kubelet_trio.embed.errors import KubeletClosedError, KubeletFailedError
from kubelet_trio.embed.source import EmbeddedSource
from kubelet_trio.embed.world import World
from kubelet_trio.model import PodUid, about_pod, get_logger, grace_period, pod_uid

if TYPE_CHECKING:
    from kubelet_trio.agent import Agent

log = get_logger()

# Seconds beyond its grace period that the end of a pod may take while a scope waits for it.
END_MARGIN = 10.0


class PodHandle(Protocol):
    """A pod handle as the core updates it; see `RunningPod`."""

    @property
    def is_gone(self) -> bool: ...

    def update(self, pod: Pod | None) -> None: ...

    def mark_gone(self) -> None: ...


HandleT = TypeVar("HandleT", bound=PodHandle)


class Core(Generic[HandleT]):
    """The agent of one `open_kubelet` block, the handles on its pods, and whether it still runs."""

    def __init__(
        self,
        world: World,
        source: EmbeddedSource,
        agent: Agent,
        handles: MutableMapping[PodUid, HandleT],
    ) -> None:
        self.world = world
        self.source = source
        self.agent = agent
        self.handles = handles
        self.scoped: dict[PodUid, Pod] = {}  # pods that end with a scope of the program
        self.is_closing = False
        self.ended: AsyncValue[bool] = AsyncValue(False)
        self.failure: Exception | None = None

    def begin_closing(self) -> None:
        """Refuse new calls from now on: the program's block has ended."""
        self.is_closing = True

    def end(self, failure: Exception | None) -> None:
        """Note that the agent has ended, and why if it failed."""
        self.failure = failure
        self.ended.value = True

    def check_open(self) -> None:
        """Raise `KubeletClosedError` (or `KubeletFailedError`) if the kubelet is closing."""
        if self.ended.value or self.is_closing:
            raise self.closed_error()

    def closed_error(self) -> KubeletClosedError:
        """Return the error for calls on a kubelet that was closed or has failed."""
        if self.failure is None:
            return KubeletClosedError("the kubelet has been closed")
        error = KubeletFailedError(f"the kubelet has failed: {describe_failure(self.failure)}")
        error.__cause__ = self.failure
        return error

    async def until_ended(self, wait: Callable[[], Awaitable[object]]) -> bool:
        """Wait for something; return False if the kubelet ended first."""
        is_done = False

        async def run_wait() -> None:
            nonlocal is_done
            await wait()
            is_done = True

        await wait_any(run_wait, partial(self.ended.wait_value, True))
        return is_done

    async def end_pod(self, pod: Pod) -> None:
        """Stop wanting a pod and wait until it is gone, at most its grace period and 10 s.

        If that is not enough, the kubelet goes on ending it, and does so at its next start.
        """
        # Shielded: an end that is cancelled half-way would leave the pod without an owner.
        # Bounded: a runtime that hangs must not block the program.
        with trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + grace_period(pod) + END_MARGIN
            await self.remove(pod)
        self.scoped.pop(pod_uid(pod), None)
        if scope.cancelled_caught:
            log.error("embed.pod_end_timeout", **about_pod(pod), grace=grace_period(pod))

    async def remove(self, pod: Pod, seconds: int | None = None) -> bool:
        """Stop wanting a pod and wait until it is gone; return False if the kubelet ended first.

        Args:
            pod: the pod, as it was put.
            seconds: a grace period, used if it is shorter than the pod's own.
        """
        uid = pod_uid(pod)
        version = self.source.drop([uid])

        async def gone() -> None:
            # First the merge: the pod's worker must know that the pod is no longer wanted.
            await self.source.wait_applied(version)
            if seconds is not None:
                self.agent.shorten_grace(uid, seconds)
            await self.agent.wait_pod_gone(pod)

        is_gone = await self.until_ended(gone)
        handle = self.handles.pop(uid, None)
        if handle is not None:
            handle.mark_gone()
        return is_gone


async def run_handles(
    agent: Agent,
    handles: MutableMapping[PodUid, HandleT],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Update every handle when its pod's status changes, until cancelled."""
    task_status.started()
    async with aclosing(agent.pods.eventual_values()) as snapshots:
        async for pods in snapshots:
            for uid, handle in list(handles.items()):
                handle.update(pods.get(uid))
                if handle.is_gone:
                    handles.pop(uid, None)


def describe_failure(failure: BaseException) -> str:
    """Return a failure in one line, a group by its members."""
    if isinstance(failure, BaseExceptionGroup):
        return "; ".join(describe_failure(inner) for inner in failure.exceptions)
    return str(failure) or type(failure).__name__
