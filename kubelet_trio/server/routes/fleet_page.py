"""The page of several nodes, which `kubelet-trio fleet` serves on this machine.

    GET /                     404: the address has a secret
    GET /{secret}/            the page
    GET /{secret}/{file}      its scripts and styles
    GET /{secret}/data        what the nodes tell

The command asks the nodes with its user's rights, so the page is its user's alone: the address has
a secret that other users of the machine do not know. Wrap it in `loopback_only`.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from kubelet_trio.model import Offload, Purpose, thread_offload
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.router import Router
from kubelet_trio.server.http.types import Request, Response
from kubelet_trio.server.routes.node_page import is_loopback_host, page_answer, page_file

_FILES = frozenset(
    ("base.css", "list.css", "fleet.css", "fleet.js", "dom.js", "plots.js", "list.js")
)

# Returns what each node tells, in the order in which they were named; see `fleet_node`.
Nodes = Callable[[], Awaitable[list[Mapping[str, Any]]]]


def fleet_router(
    nodes: Nodes, secret: str, offload: Offload = thread_offload.of(Purpose.LOGS)
) -> Router:
    """Return the routes of the page; `secret` is the first part of their paths."""
    router = Router()

    def check(request: Request) -> None:
        if not secrets.compare_digest(request.params["secret"].encode(), secret.encode()):
            raise HttpError(HTTPStatus.NOT_FOUND, "404 page not found")

    async def page(request: Request) -> Response:
        check(request)
        if not request.path.endswith("/"):
            return Response(HTTPStatus.FOUND, headers=(("Location", f"{secret}/"),))
        return await page_file("fleet.html", offload)

    async def data(request: Request) -> Response:
        check(request)
        return page_answer(msgspec.json.encode({"nodes": await nodes()}))

    async def file(request: Request) -> Response:
        check(request)
        if request.params["file"] not in _FILES:
            raise HttpError(HTTPStatus.NOT_FOUND, "404 page not found")
        return await page_file(request.params["file"], offload)

    router.add("GET", "/{secret}", page)
    router.add("GET", "/{secret}/data", data)
    router.add("GET", "/{secret}/{file}", file)
    return router


def fleet_node(name: str, link: str, told: bytes) -> dict[str, Any]:
    """Return what the page shows of a node, from its `/ui/data`.

    Args:
        name: as the user calls the node.
        link: the address of its own page; "": where its agent says that it is.
        told: the answer of its agent.

    Raises:
        ValueError: it is not such an answer.
    """
    try:
        data = msgspec.json.decode(told)
        node, usage = data["node"], data["stats"]["node"]
        memory = usage.get("memory") or {}
        used = memory.get("workingSetBytes", memory.get("usageBytes"))
        free = memory.get("availableBytes")
        page = node.get("page", "")
        return {
            "name": name,
            # An agent's word is no link to anywhere else.
            "link": link or (f"http://{page}/ui/" if is_loopback_host(page) else ""),
            "error": "",
            "version": data["version"],
            "now": data["now"],
            "node": node,
            "pods": data["pods"],
            "cpu": (usage.get("cpu") or {}).get("usageNanoCores"),
            "memory": used,
            "memoryTotal": used + free if used is not None and free is not None else None,
        }
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as exc:
        raise ValueError("the answer is not that of a node page; is the agent too old?") from exc


def failed_node(name: str, link: str, error: str) -> dict[str, Any]:
    """Return what the page shows of a node that cannot be asked."""
    return {"name": name, "link": link, "error": error, "pods": []}
