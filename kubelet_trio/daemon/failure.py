"""Tells a cluster that its node could not be set up: the last that is heard of that start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio.model import Event, WallClock, node_ref

if TYPE_CHECKING:
    from kubelet_trio.agent import Apis

_REASON = "KubeletSetupFailed"


async def tell_setup_failure(apis: Apis, node: str, message: str, clock: WallClock) -> None:
    """Send the event, or give up after two seconds: an API server that is away holds up no exit.

    The agent has no task yet that would send it.
    """
    from kubelet_trio.events import ApiEvents

    events = ApiEvents(apis.api, node)
    events.put(Event(node_ref(node), "Warning", _REASON, message, clock.time()))
    events.stop()
    await events.run()
