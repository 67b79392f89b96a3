"""Reports to a cluster that the setup of its node failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio.model import Event, WallClock, node_ref

if TYPE_CHECKING:
    from kubelet_trio.daemon.join import Apis

_REASON = "KubeletSetupFailed"


async def report_setup_failure(apis: Apis, node: str, message: str, clock: WallClock) -> None:
    """Send the event; give up after two seconds, so that an unreachable server delays no exit."""
    from kubelet_trio.events import ApiEvents

    # Sent here, because there is no agent whose tasks could send it.
    events = ApiEvents(apis.api, node)
    events.put(Event(node_ref(node), "Warning", _REASON, message, clock.time()))
    events.stop()
    await events.run()
