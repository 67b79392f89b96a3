"""How an embedded agent lives and ends beside the program's own code.

Its tree stands in a scope that is shielded once it runs: a cancellation of the program
reaches the program's own code first, so that `run_pod` scopes can take their pods down with
the agent still at work. The shield has an end: when the program's block is left, however that
comes about, `close` gives what is left so many seconds, and then takes the scope down itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

import trio

from kubelet_trio.embed.core import END_MARGIN, Core
from kubelet_trio.model import grace_period
from kubelet_trio.supervision import run_contained

# Seconds that the agent's tree is given to end in order once no scoped pod is left.
_STOP = 20.0
# Of these, for what is kept to be on disk.
_SAVE = 5.0


class Life:
    """The agent's task, and how it ends."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._scope = trio.CancelScope()
        self.body = trio.CancelScope()  # the program's block: cancelled if the agent fails

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the agent to its end, in a scope that the program's cancellation spares."""
        core = self._core
        ready = _Ready(self._shield, task_status.started)
        with self._scope:
            core.failure = await run_contained(core.agent.run, task_status=ready)
        core.ended.value = True
        self.body.cancel(reason="the embedded kubelet has ended")
        if not ready.is_said:
            task_status.started()

    def _shield(self) -> None:
        # From here on `close` is what ends the agent. Cancelled before, `open_kubelet` never
        # gets to its block: the agent has to end by itself then, and has started nothing.
        if trio.current_effective_deadline() > -math.inf:
            self._scope.shield = True

    async def close(self) -> None:
        """End what is left: pods of scopes that are still open, then the agent. Bounded."""
        core = self._core
        core.is_closing = True
        left = list(core.scoped.values())
        longest = max((grace_period(pod) for pod in left), default=0)
        # Shielded: the program's cancellation is what brings us here. Bounded: by the pods'
        # own grace, and then by the agent's end.
        with trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + (longest + END_MARGIN if left else 0) + _STOP
            async with trio.open_nursery() as ends:
                for pod in left:
                    ends.start_soon(core.end_pod, pod)
            with trio.move_on_after(_SAVE):
                await core.until_ended(partial(core.source.wait_saved, core.source.version))
            if not core.ended.value:
                core.agent.stop()
                await core.ended.wait_value(True)
        self._scope.cancel(reason="the embedded kubelet did not end when asked")


class Aside:
    """What a block raises, kept while a nursery around it ends, and raised behind that.

        with Aside() as aside:
            async with trio.open_nursery():
                with aside.keep():
                    yield ...

    Raised through the nursery it would come out in a group. `Cancelled` may be kept too,
    where every scope within `Aside` is left by then.
    """

    def __init__(self) -> None:
        self._kept: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        kept, self._kept = self._kept, None
        if error is None and kept is not None:
            raise kept

    def keep(self) -> _Keeper:
        """Return a context that keeps what its block raises."""
        return _Keeper(self._put)

    def _put(self, error: BaseException) -> None:
        self._kept = error


class _Keeper:
    def __init__(self, put: Callable[[BaseException], None]) -> None:
        self._put = put

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._put(error)
        return error is not None


class _Ready:
    """A task status that also tells us."""

    def __init__(self, *tell: Callable[[], None]) -> None:
        self._tell = tell
        self.is_said = False

    def started(self, _value: None = None) -> None:
        self.is_said = True
        for tell in self._tell:
            tell()
