"""The event stream of a fake runtime."""

from __future__ import annotations

from collections import deque

import trio

from kubelet_trio.cri import RuntimeUnavailableError, UnsupportedCallError, v1
from kubelet_trio.testing.calls import CallDesk, before_effect
from kubelet_trio.testing.node import FakeNode

EVENT_BACKLOG = 1000
CALL = "GetContainerEvents"


class EventStream:
    """Iterates over the events of one subscriber."""

    def __init__(self, node: FakeNode, desk: CallDesk, *, supported: bool) -> None:
        self.inbox: deque[v1.ContainerEventResponse] = deque(maxlen=EVENT_BACKLOG)
        self._node = node
        self._desk = desk
        self._supported = supported
        self.is_over = False

    def end(self) -> None:
        """End it cleanly, as a runtime does that shuts down in order."""
        self.is_over = True
        self._node.wake()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> v1.ContainerEventResponse:
        await trio.lowlevel.checkpoint()
        if not self._supported:
            raise UnsupportedCallError(CALL, "method GetContainerEvents not implemented")
        await before_effect(CALL, self._desk.faults.take(CALL, frozenset()))
        while True:
            if self._desk.is_down:
                raise RuntimeUnavailableError(CALL, "error reading from server: EOF")
            if self.is_over:
                raise StopAsyncIteration
            self._node.settle()
            if self.inbox:
                return self.inbox.popleft()
            with trio.move_on_at(self._node.next_change()):
                await self._node.activity.wait()
