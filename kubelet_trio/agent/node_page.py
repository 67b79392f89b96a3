"""The node page, with the agent behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kubelet_trio.server import open_tcp, serve_http

if TYPE_CHECKING:
    from kubelet_trio.agent.core import Agent
    from kubelet_trio.server import Router


async def serve_node_page(
    agent: Agent, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the page without asking who it is: on the loopback address alone."""
    from kubelet_trio.server import loopback_only

    listeners = await open_tcp("127.0.0.1", port)
    await serve_http(loopback_only(node_page(agent)), listeners, task_status=task_status)


def node_page(agent: Agent) -> Router:
    """Return the routes of the page, below `/ui/`."""
    from kubelet_trio.server import node_page_router

    return node_page_router(agent, agent.stats.summary, agent.clock.time)
