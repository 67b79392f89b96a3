"""Fake pidfds, which report the exits of a fake runtime's processes."""

from __future__ import annotations

from types import TracebackType

import trio

from kubelet_trio.testing.node import FakeNode
from kubelet_trio.testing.objects import FakeContainer


class FakeExitWatch:
    """Watches one process until it is closed."""

    def __init__(self, waiter: FakeExitWaiter, container: FakeContainer) -> None:
        self._waiter = waiter
        self._container = container

    async def wait_exited(self) -> None:
        """Return when the process has exited; never, if the waiter is deaf."""
        await self._waiter.wait_dead(self._container)
        if self._waiter.deaf:
            await trio.sleep_forever()
        # `wait_dead` is no checkpoint if the process has exited already.
        await trio.lowlevel.checkpoint()

    def is_older(self, than: float) -> bool:
        """Whether the process began before a Unix time, by the fake node's clock."""
        return self._container.started_at <= than

    def __enter__(self) -> FakeExitWatch:
        self._waiter.open_watches += 1
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._waiter.open_watches -= 1


class FakeExitWaiter:
    """Implements `pleg.ExitWaiter` for the processes of a fake runtime.

    Set `error` to an OSError to refuse watches (`PermissionError`: no pidfds on this machine);
    set `deaf` to miss exits. `open_watches` is 0 after all are closed.
    """

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.error: OSError | None = None
        self.deaf = False
        self.open_watches = 0

    def open(self, pid: int) -> FakeExitWatch:
        """Watch a running process. Raises ProcessLookupError if there is none with this PID."""
        if self.error is not None:
            raise self.error
        # Exits that are due come first: pidfd_open(2) of a process that is gone is ESRCH.
        self._node.settle()
        container = self._node.by_pid(pid)
        if container is not None and container.alive:
            return FakeExitWatch(self, container)
        raise ProcessLookupError(f"no process {pid}")

    async def wait_dead(self, container: FakeContainer) -> None:
        """Return when a container's process has exited, or the container was forgotten."""
        # An exit is a time, not a task: it happens when something calls `settle` after it. A change
        # of the container can move it forward.
        while container.alive:
            with trio.move_on_at(container.dies_at):
                await container.changed.wait()
            self._node.settle()
