"""The node page, with the agent behind it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from kubelet_trio.server import SERVING, Port, Request, Response, serve_http
from kubelet_trio.supervision import ChildSpec

if TYPE_CHECKING:
    from kubelet_trio.agent.core import Agent
    from kubelet_trio.server import Router


def node_page_child(agent: Agent, number: int) -> ChildSpec:
    """Return the child that serves the page without asking who it is: on loopback alone."""
    port = agent.ports.tcp("ui", "--ui-port", "127.0.0.1", number)
    serve = partial(_serve_node_page, agent, port)
    return ChildSpec("ui", serve, policy=SERVING, note=port.problem)


async def _serve_node_page(
    agent: Agent, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    from kubelet_trio.server import loopback_only

    page = loopback_page(agent)
    listeners = await port.listen(task_status.started)
    await serve_http(loopback_only(page), listeners)


def loopback_page(agent: Agent) -> Router:
    """Return the routes of the port that has nothing else."""
    page = node_page(agent)
    page.add("GET", "/", _to_page)
    return page


def node_page(agent: Agent) -> Router:
    """Return the routes of the page, below `/ui/`."""
    from kubelet_trio.server import node_page_router

    return node_page_router(agent, agent.stats.summary, agent.clock.time)


async def _to_page(_: Request) -> Response:
    await trio.lowlevel.checkpoint()
    return Response(302, headers=(("Location", "/ui/"),))
