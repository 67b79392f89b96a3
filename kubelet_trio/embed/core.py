"""What a kubelet and its pod handles share: the agent, the wanted pods, and whether it lives.

The state here has two writers, both in the program's own thread and neither awaiting in
between: the program's calls, and `run_handles`, the agent's child that tells the handles what
became of their pods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue, wait_any

from kubelet_trio.embed._errors import KubeletClosedError, KubeletFailedError
from kubelet_trio.embed.source import EmbeddedSource
from kubelet_trio.embed.world import World
from kubelet_trio.model import PodUid, get_logger, grace_period, pod_key, pod_uid

if TYPE_CHECKING:
    from kubelet_trio.agent import Agent
    from kubelet_trio.embed.running import RunningPod

log = get_logger()

# Beyond its grace period, seconds that the end of a pod may take where a scope waits for it.
END_MARGIN = 10.0


class Core:
    """See the module."""

    agent: Agent  # set once it is built

    def __init__(self, world: World, source: EmbeddedSource) -> None:
        self.world = world
        self.source = source
        self.handles: dict[PodUid, RunningPod] = {}
        self.scoped: dict[PodUid, Pod] = {}  # those that end with a scope of the program
        self.is_closing = False
        self.ended: AsyncValue[bool] = AsyncValue(False)
        self.failure: Exception | None = None

    # Whether it lives

    def check_open(self) -> None:
        """Raise `KubeletClosedError` (or `KubeletFailedError`) once nothing may begin."""
        if self.ended.value or self.is_closing:
            raise self.closed_error()

    def closed_error(self) -> KubeletClosedError:
        if self.failure is None:
            return KubeletClosedError("the kubelet has been closed")
        error = KubeletFailedError(f"the kubelet has failed: {describe_failure(self.failure)}")
        error.__cause__ = self.failure
        return error

    async def until_ended(self, wait: Callable[[], Awaitable[object]]) -> bool:
        """Wait for something; False when the kubelet ended before it came."""
        came = False

        async def wanted() -> None:
            nonlocal came
            await wait()
            came = True

        await wait_any(wanted, partial(self.ended.wait_value, True))
        return came

    # Pods that end

    async def end_pod(self, pod: Pod) -> None:
        """Stop wanting a pod and wait until it is gone, at most its grace and some seconds.

        Shielded: an end that was cancelled half-way would leave the pod to nobody. Bounded:
        a runtime that hangs must not hold the program. What is left then goes on ending
        while the kubelet lives, and at its next start.
        """
        with trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + grace_period(pod) + END_MARGIN
            await self.remove(pod)
        self.scoped.pop(pod_uid(pod), None)
        if scope.cancelled_caught:
            log.error("embed.pod_end_timeout", pod=str(pod_key(pod)), grace=grace_period(pod))

    async def remove(self, pod: Pod, seconds: int | None = None) -> bool:
        """Stop wanting a pod and wait until it is gone; False if the kubelet ended first.

        Args:
            pod: the pod, as it was put.
            seconds: a shorter grace period than its own.
        """
        uid = pod_uid(pod)
        version = self.source.drop([uid])

        async def gone() -> None:
            await self.source.wait_applied(version)
            if seconds is not None:
                self.agent.shorten_grace(uid, seconds)
            await self.agent.wait_pod_gone(pod)

        is_gone = await self.until_ended(gone)
        handle = self.handles.pop(uid, None)
        if handle is not None:
            handle.note_gone()
        return is_gone

    # What handles are told

    async def run_handles(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Tell every handle what becomes of its pod, until cancelled."""
        task_status.started()
        async with aclosing(self.agent.pods.eventual_values()) as snapshots:
            async for pods in snapshots:
                for uid, handle in list(self.handles.items()):
                    handle.see(pods.get(uid))
                    if handle.is_gone:
                        self.handles.pop(uid, None)


def describe_failure(failure: BaseException) -> str:
    """Say a failure in a line, a group by what is in it."""
    if isinstance(failure, BaseExceptionGroup):
        return "; ".join(describe_failure(inner) for inner in failure.exceptions)
    return str(failure) or type(failure).__name__
