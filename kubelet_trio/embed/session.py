"""Runs the embedded agent next to the program's block, and ends it with the block.

The agent runs in a scope that is shielded once it has started. A cancellation of the program
therefore reaches the program's own code first, and `run_pod` scopes can take their pods down
while the agent still works. The shield is bounded: when the program's block is left, for any
reason, `close` gives the agent a deadline and then cancels its scope.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

import trio

from kubelet_trio.embed.core import END_MARGIN, Core
from kubelet_trio.embed.running import RunningPod
from kubelet_trio.model import grace_period
from kubelet_trio.supervision import run_contained

_STOP = 20.0  # seconds for the agent's tree to end in order once no scoped pod is left
_SAVE = 5.0  # of these, for writing the kept pods to disk


class Session:
    """The agent's task, from the start of the program's block to the agent's end."""

    def __init__(self, core: Core[RunningPod]) -> None:
        self._core = core
        self._scope = trio.CancelScope()
        self.body = trio.CancelScope()  # the program's block: cancelled if the agent fails

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the agent to its end, in a scope shielded from the program's cancellation."""
        core = self._core
        ready = _ReadyStatus(self._shield, task_status.started)
        failure: Exception | None = None
        with self._scope:
            failure = await run_contained(core.agent.run, task_status=ready)
        core.end(failure)
        self.body.cancel(reason="the embedded kubelet has ended")
        # The agent failed before its tree ran: `nursery.start` still waits for this call.
        if not ready.is_started:
            task_status.started()

    def _shield(self) -> None:
        # From here on `close` ends the agent. If the program was cancelled before, its block
        # never runs and `close` is never called: without a shield the agent ends by itself.
        if trio.current_effective_deadline() > -math.inf:
            self._scope.shield = True

    async def close(self) -> None:
        """End the pods of scopes that are still open, then the agent, within a deadline."""
        core = self._core
        core.begin_closing()
        left = list(core.scoped.values())
        longest = max((grace_period(pod) for pod in left), default=0)
        # Shielded: a cancellation of the program is a usual reason for this call. Bounded: by
        # the pods' grace periods, then by the time for the agent's own end.
        with trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + (longest + END_MARGIN if left else 0) + _STOP
            async with trio.open_nursery() as ends:
                for pod in left:
                    ends.start_soon(core.end_pod, pod)
            # While the agent runs: its source is the task that writes the file.
            with trio.move_on_after(_SAVE):
                await core.until_ended(partial(core.source.wait_saved, core.source.version))
            # First in order; the cancellation below is for an agent that does not end.
            if not core.ended.value:
                core.agent.stop()
                await core.ended.wait_value(True)
        self._scope.cancel(reason="the embedded kubelet did not end when asked")


class RaiseOutside:
    """Carries an exception of a block past the nursery around it, and raises it there.

        with RaiseOutside() as outside:
            async with trio.open_nursery():
                with outside.catch():
                    yield ...

    A nursery would wrap the exception in a group. `Cancelled` may be caught as well, provided
    that every cancel scope inside `RaiseOutside` has been left when it is raised again.
    """

    def __init__(self) -> None:
        self._caught: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        caught, self._caught = self._caught, None
        if error is None and caught is not None:
            raise caught

    def catch(self) -> _Catch:
        """Return a context that catches what its block raises."""
        return _Catch(self._keep)

    def _keep(self, error: BaseException) -> None:
        self._caught = error


class _Catch:
    def __init__(self, keep: Callable[[BaseException], None]) -> None:
        self._keep = keep

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._keep(error)
        return error is not None


class _ReadyStatus:
    """A task status that also calls functions, and remembers that it was called."""

    def __init__(self, *callbacks: Callable[[], None]) -> None:
        self._callbacks = callbacks
        self.is_started = False

    def started(self, _value: None = None) -> None:
        self.is_started = True
        for callback in self._callbacks:
            callback()
