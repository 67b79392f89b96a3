"""The pages of the servers: the node page, stats and metrics."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import trio

from kubelet_trio.agent.core import Agent
from kubelet_trio.agent.metrics import AgentMetrics
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.model import PodUid, get_logger
from kubelet_trio.server import (
    SERVING,
    WHY_PATH,
    Handler,
    HttpError,
    Port,
    Request,
    Response,
    Send,
    serve_http,
    why_handler,
)
from kubelet_trio.supervision import ChildSpec

if TYPE_CHECKING:
    from kubelet_trio.server import PageSessions, Router

log = get_logger()

_READ_LIMIT = 30.0  # seconds for a client to read a page of metrics, as for a body in one piece

_ONLY = "only_cpu_and_memory"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110, 5.6.2
_MEDIA_TYPE = re.compile(rf"\s*({_TOKEN}(/{_TOKEN})?)?\s*")
# https://prometheus.io/docs/instrumenting/exposition_formats/
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def node_page_child(agent: Agent, number: int, sessions: PageSessions | None = None) -> ChildSpec:
    """Return the child that serves the page without authentication: on loopback alone.

    `sessions` are those who may act on it; None: nobody may.
    """
    port = agent.ports.tcp("ui", "--ui-port", "127.0.0.1", number)
    serve = partial(_serve_node_page, agent, port, sessions)
    return ChildSpec("ui", serve, policy=SERVING, note=port.problem)


async def _serve_node_page(
    agent: Agent,
    port: Port,
    sessions: PageSessions | None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    from kubelet_trio.server import loopback_only

    page = loopback_page(agent, sessions)
    agent.history.want()
    listeners = await port.listen(task_status.started)
    log.info("page.open", url=f"http://{port.info.address}/ui/")
    await serve_http(loopback_only(page), listeners)


def loopback_page(agent: Agent, sessions: PageSessions | None = None) -> Router:
    """Return the routes of the port that serves the page alone; `sessions`: who may act there."""
    actions = None
    if sessions is not None:
        from kubelet_trio.server import page_actions_router

        actions = page_actions_router(agent, agent.restart, sessions)
    page = node_page(agent, actions)
    page.add("GET", "/", _to_page)
    return page


def node_page(agent: Agent, actions: Router | None = None) -> Router:
    """Return the routes of the page, below `/ui/`; with `actions` the page offers these."""
    from kubelet_trio.server import node_page_router

    return node_page_router(
        agent,
        agent.stats.summary,
        agent.history.page,
        agent.clock.time,
        os.cpu_count() or 1,
        actions=actions,
        reasons=partial(_reasons, agent),
    )


def _reasons(agent: Agent, uid: PodUid) -> Sequence[str]:
    from kubelet_trio.pods import sentences  # loaded when somebody asks

    why = agent.why(uid)
    return list(sentences(why)) if why is not None else []


async def _to_page(_: Request) -> Response:
    await trio.lowlevel.checkpoint()
    return Response(302, headers=(("Location", "/ui/"),))


def why_page(agent: Agent) -> tuple[str, Handler]:
    """Return the path and the handler that says why a pod is as it is."""
    return WHY_PATH, why_handler(agent, agent.why)


def stats_pages(stats: AgentStats, metrics: AgentMetrics) -> Mapping[str, Handler]:
    """Return the handlers of `/stats/summary` (GET and POST) and of the metrics pages (GET)."""

    async def summary(request: Request) -> Response:
        only = _asks_only_cpu_and_memory(request)
        body = await stats.summary(only_cpu_and_memory=only)
        return Response(body=body, content_type="application/json")

    async def cadvisor(_request: Request) -> Response:
        pieces = await (await stats.provider()).cadvisor()

        async def write(send: Send) -> None:
            # Until it is read, all that was measured stays in memory.
            with trio.move_on_after(_READ_LIMIT):
                for piece in pieces:
                    await send(piece)
                return
            raise trio.BrokenResourceError("the client does not read")

        return Response(stream=write, content_type=_TEXT)

    async def resource(_request: Request) -> Response:
        return _page(await (await stats.provider()).resource())

    async def own(_request: Request) -> Response:
        return _page(await metrics.page())

    async def probes(_request: Request) -> Response:
        return _page(await metrics.probes_page())

    async def slis(_request: Request) -> Response:
        return _page(await metrics.slis_page())

    return {
        "/stats/summary": summary,
        "/metrics": own,
        "/metrics/cadvisor": cadvisor,
        "/metrics/probes": probes,
        "/metrics/resource": resource,
        "/metrics/slis": slis,
    }


def _page(text: str) -> Response:
    return Response(body=text.encode(), content_type=_TEXT)


def _asks_only_cpu_and_memory(request: Request) -> bool:
    """Return whether a request asks for a short summary. Raises `HttpError` 500."""
    # As upstream: in the query or in a form, exactly once, as `true`.
    given = [value for name, value in request.arguments if name == _ONLY]
    kind = request.headers.get("content-type", "")
    if request.method == "POST" and not _MEDIA_TYPE.fullmatch(kind.partition(";")[0]):
        # ParseForm in net/http looks at the type of a body alone.
        problem = "mime: unexpected content after media subtype"
        raise HttpError(500, f"Internal Error: parse form failed: {problem}", end="")
    if kind.startswith("application/x-www-form-urlencoded"):
        given += parse_qs(request.body.decode("utf-8", "replace")).get(_ONLY, [])
    return given == ["true"]
