"""Runtime calls side by side, each to its own end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

from kubelet_trio.cri import RuntimeCallError


async def run_together(
    steps: Iterable[Callable[[], Awaitable[None]]],
    expected: tuple[type[Exception], ...] = (RuntimeCallError,),
) -> None:
    """Run the steps at once; if some raise what is `expected`, raise the first when all ended.

    One container that cannot be stopped must not keep its neighbours from being stopped.
    """
    errors: list[Exception] = []

    async def run(step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except expected as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        for step in steps:
            nursery.start_soon(run, step)
    if errors:
        raise errors[0]


async def run_beside(
    step: Callable[[], Awaitable[None]],
    tasks: Iterable[Callable[[], Awaitable[None]]],
    expected: tuple[type[Exception], ...],
) -> None:
    """Run the step, and the tasks for as long as it takes.

    What is `expected` of the step is raised as it is: through the nursery it would come out a
    group.
    """
    trouble: Exception | None = None
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        try:
            await step()
        except expected as exc:
            trouble = exc
        nursery.cancel_scope.cancel()
    if trouble is not None:
        raise trouble
