"""The end of an agent that ends its pods: what a person at a terminal is told meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from typing import TextIO

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent
from kubelet_trio.model import is_terminal, metadata

_PERIOD = 2.0  # s between two lines
_NAMED = 3  # pods in a line


async def end_pods(agent: Agent, hurry: trio.Event, terminal: TextIO | None) -> None:
    """End and remove every pod, with its grace; once `hurry` is set without.

    On a `terminal` a line says now and then what is left. Lines, because the log goes there too.
    """
    async with trio.open_nursery() as beside:
        beside.start_soon(_kill_when_hurried, agent, hurry)
        if terminal is not None:
            beside.start_soon(_tell, agent, hurry, terminal)
        await agent.remove_pods()
        beside.cancel_scope.cancel()


async def _kill_when_hurried(agent: Agent, hurry: trio.Event) -> None:
    await hurry.wait()
    for uid in agent.pods.value:
        agent.shorten_grace(uid, 0)


async def _tell(agent: Agent, hurry: trio.Event, terminal: TextIO) -> None:
    while True:
        await trio.sleep(_PERIOD / 2)  # most pods need no line at all
        if agent.pods.value:
            pods = agent.pods.value.values()
            print(ending_line(pods, agent.clock.time(), killed=hurry.is_set()), file=terminal)
        await trio.sleep(_PERIOD / 2)


def ending_line(pods: Collection[Pod], now: float, *, killed: bool = False) -> str:
    """Return how many pods are left and what they have of their grace, the longest first. Pure.

    `now` is in Unix seconds; `killed`: they are killed already.
    """
    left = sorted(((_grace_left(pod, now), metadata(pod).name or "") for pod in pods), reverse=True)
    shown = [f"{name}: {_words(grace)}" for grace, name in left[:_NAMED]]
    rest = [f"{len(left) - _NAMED} more"] if len(left) > _NAMED else []
    what = f"ending {len(left)} pod{'s' * (len(left) != 1)}: {', '.join([*shown, *rest])}"
    return f"{what} ({'killed; ' * killed}Ctrl-C again to {'leave them' if killed else 'kill'})"


def _grace_left(pod: Pod, now: float) -> float:
    until = metadata(pod).deletionTimestamp
    if until is None or is_terminal(pod.status):
        return 0.0
    return max(0.0, until.timestamp() - now)


def _words(grace: float) -> str:
    return f"{grace:.0f} s of grace left" if grace else "its parts are being removed"
