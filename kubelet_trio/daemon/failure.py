"""Reports to a cluster that its node could not be set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio.model import Event, WallClock, node_ref

if TYPE_CHECKING:
    from kubelet_trio.daemon.join import Apis

_REASON = "KubeletSetupFailed"


async def report_setup_failure(apis: Apis, node: str, message: str, clock: WallClock) -> None:
    """Send the event; give up after two seconds, so that an unreachable server delays no exit.

    The agent, whose tasks send events otherwise, was not built.
    """
    from kubelet_trio.events import ApiEvents

    events = ApiEvents(apis.api, node)
    events.put(Event(node_ref(node), "Warning", _REASON, message, clock.time()))
    events.stop()
    await events.run()
