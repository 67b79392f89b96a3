"""The pages of stats and metrics as handlers by path, for whichever server shows them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from kubelet_trio.agent.metrics import AgentMetrics
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.server import Handler, Request, Response

_ONLY = "only_cpu_and_memory"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def stats_pages(stats: AgentStats, metrics: AgentMetrics) -> Mapping[str, Handler]:
    """Return the handlers of `/stats/summary` (GET and POST) and of the metrics pages (GET)."""

    async def summary(request: Request) -> Response:
        only = _asks_only_cpu_and_memory(request)
        body = await stats.summary(only_cpu_and_memory=only)
        return Response(body=body, content_type="application/json")

    async def cadvisor(_request: Request) -> Response:
        return _page(await (await stats.provider()).cadvisor())

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
    """Upstream takes it from the query or from a form, given once, as `true`."""
    given = [value for name, value in request.arguments if name == _ONLY]
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        given += parse_qs(request.body.decode("utf-8", "replace")).get(_ONLY, [])
    return given == ["true"]
