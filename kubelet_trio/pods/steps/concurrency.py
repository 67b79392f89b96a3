"""Run steps: concurrently, together with other tasks, and to completion while the agent stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

import trio

from kubelet_trio.cri import RuntimeCallError


async def run_together(
    steps: Iterable[Callable[[], Awaitable[None]]],
    expected: tuple[type[Exception], ...] = (RuntimeCallError,),
) -> None:
    """Run the steps concurrently; when all have ended, raise the first `expected` error, if any."""
    # Raised in the nursery, an error would cancel the other steps: a container that cannot be
    # stopped must not prevent the others from being stopped.
    errors: list[Exception] = []

    async def run(step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except expected as exc:
            errors.append(exc)

    found = list(steps)
    if len(found) == 1:  # of most pods: a nursery and its task cost as much as many a step
        await found[0]()
        return
    if not found:
        return
    async with trio.open_nursery() as nursery:
        for step in found:
            nursery.start_soon(run, step)
    if errors:
        raise errors[0]


async def run_alongside(
    step: Callable[[], Awaitable[None]],
    tasks: Iterable[Callable[[], Awaitable[None]]],
    expected: tuple[type[Exception], ...] = (),
) -> None:
    """Run the step together with the tasks, and cancel the tasks when it ends.

    An `expected` error of the step is raised by itself, not in an exception group of a nursery.
    """
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        try:
            await step()
        except expected as exc:
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


class GracefulScope:
    """A cancel scope that lets a step in progress end before it cancels the rest."""

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._is_cancelled = False
        self._in_step = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Enter the scope; it may be entered again after it was left."""
        # A new one each time: Trio allows a CancelScope in one `with` block only.
        with trio.CancelScope() as self._scope:
            # `cancel` may have been called before.
            self._cancel_between_steps()
            yield

    @contextmanager
    def step(self) -> Iterator[None]:
        """Let what runs in the block end before the scope is cancelled."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
            self._cancel_between_steps()

    def cancel(self) -> None:
        """Cancel now, or at the end of the step in progress. Never blocks."""
        self._is_cancelled = True
        self._cancel_between_steps()

    def _cancel_between_steps(self) -> None:
        if self._is_cancelled and not self._in_step:
            self._scope.cancel()
