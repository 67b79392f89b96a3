"""Every door, every route, every kind of caller: one table, which the routers must agree with.

A route that is added without a line here fails, and so does a line without its route.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.authentication_v1 import UserInfo
from lightkube.models.authorization_v1 import SubjectAccessReviewSpec

from kubelet_trio.agent import Agent, NodeApiSettings, ReviewApis
from kubelet_trio.agent.node_api import NodeApi
from kubelet_trio.agent.pages import loopback_page, node_page
from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import build_agent
from kubelet_trio.daemon.build import control_api
from kubelet_trio.model import inline_offload
from kubelet_trio.server import (
    ApiOptions,
    HttpError,
    PageSessions,
    Request,
    Response,
    Router,
    health_router,
    loopback_only,
    open_unix,
)
from kubelet_trio.server.access.authorization import accesses
from tests.server.reviews import Reviews

_STREAMS = ("GET", "POST")
_ALL = ("GET", "POST", "PUT", "PATCH", "DELETE")
SUBRESOURCES = (
    "checkpoint", "configz", "healthz", "log", "metrics", "pods", "proxy", "stats", "statusz",
)  # fmt: skip
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

# Pattern -> its methods, the subresources of which one is enough, and the verb where it is not
# the method's. What the port 10250 has.
HTTPS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "/healthz": (("GET",), ("healthz", "proxy"), ""),
    "/healthz/{check}": (("GET",), ("healthz", "proxy"), ""),
    "/pods": (("GET",), ("pods", "proxy"), ""),
    "/runningpods": (("GET",), ("pods", "proxy"), ""),
    "/why/{namespace}/{name}": (("GET",), ("pods", "proxy"), ""),
    "/configz": (("GET",), ("configz", "proxy"), ""),
    "/flagz": (("GET",), ("configz",), ""),
    "/statusz": (("GET",), ("statusz",), ""),
    "/stats/summary": (("GET", "POST"), ("stats",), ""),
    "/metrics": (("GET",), ("metrics",), ""),
    "/metrics/cadvisor": (("GET",), ("metrics",), ""),
    "/metrics/probes": (("GET",), ("metrics",), ""),
    "/metrics/resource": (("GET",), ("metrics",), ""),
    "/metrics/slis": (("GET",), ("metrics",), ""),
    "/logs/{path...}": (("GET",), ("log",), ""),
    "/checkpoint/{namespace}/{pod}/{container}": (("POST",), ("checkpoint",), ""),
    "/containerLogs/{namespace}/{pod}/{container}": (("GET",), ("proxy",), ""),
    "/run/{namespace}/{pod}/{container}": (("POST",), ("proxy",), "create"),
    "/run/{namespace}/{pod}/{uid}/{container}": (("POST",), ("proxy",), "create"),
    "/exec/{namespace}/{pod}/{container}": (_STREAMS, ("proxy",), "create"),
    "/exec/{namespace}/{pod}/{uid}/{container}": (_STREAMS, ("proxy",), "create"),
    "/attach/{namespace}/{pod}/{container}": (_STREAMS, ("proxy",), "create"),
    "/attach/{namespace}/{pod}/{uid}/{container}": (_STREAMS, ("proxy",), "create"),
    "/portForward/{namespace}/{pod}": (_STREAMS, ("proxy",), "create"),
    "/portForward/{namespace}/{pod}/{uid}": (_STREAMS, ("proxy",), "create"),
    "/debug/pprof/{name...}": (("GET",), ("proxy",), ""),
    "/debug/tasks": (("GET",), ("proxy",), ""),
    "/debug/log": (("GET",), ("proxy",), ""),
    "/debug/flags/v": (_ALL, ("proxy",), ""),
    "/ui/{path...}": (("GET",), ("proxy",), ""),
}
_REFUSED = (
    "run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs", "debug/pprof",
    "debug/tasks", "debug/log",
)  # fmt: skip
# What has no guard: who is let in says the place.
READ_ONLY = {
    *(("GET", path) for path in HTTPS if path.startswith(("/healthz", "/pods", "/metrics"))),
    ("GET", "/stats/summary"),
    ("POST", "/stats/summary"),
    *((method, f"/{name}/{{rest...}}") for name in _REFUSED for method in _ALL),  # 405 each
}
HEALTHZ = {
    ("GET", f"/{endpoint}{check}")
    for endpoint in ("healthz", "livez", "readyz")
    for check in ("", "/{check}")
}
UI = {
    ("GET", path)
    for path in (
        "/", "/ui/", "/ui/{file}", "/ui/data", "/ui/history", "/ui/pods/{namespace}/{name}",
        "/ui/logs/{namespace}/{pod}/{container}",
    )
}  # fmt: skip
ACTIONS = {  # with --ui-actions; each but `session` checks Origin, cookie and key
    ("GET", "/ui/session"),
    ("GET", "/ui/exec/{namespace}/{pod}/{container}"),
    *(("POST", f"/ui/{path}") for path in ("login", "logout", "restart/{namespace}/{pod}")),
}
CONTROL = {
    ("GET", path)
    for path in (
        "/pods",
        "/pods/{namespace}/{name}",
        "/why/{namespace}/{name}",
        "/events",
        "/tree",
        "/status",
        "/version",
        "/stats",
        "/volumes",
        "/topology",
        "/agent-log",
        "/profile/{name}",
        "/history",
        "/node",
        "/images",
        "/logs/{namespace}/{pod}/{container}",
        "/exec/{namespace}/{pod}/{container}",
        "/attach/{namespace}/{pod}/{container}",
        "/portforward/{namespace}/{pod}",
        "/ui/{path...}",
    )
} | {
    ("POST", path)
    for path in (
        "/restart/{namespace}/{pod}",
        "/debug/{namespace}/{pod}",
        "/plan",
        "/record",
        "/login",
    )
}


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    arguments = [f"--root-dir={tmp_path}", "--node-ip=127.0.0.1"]
    return build_agent(load_settings(arguments), {})


class Cluster(Reviews):
    """Knows one user by the token `known`, who may what `rights` say."""

    def __init__(self, *rights: tuple[str, str]) -> None:
        super().__init__()
        self.tokens["known"] = UserInfo(username="known")
        self.rights = set(rights)
        self.may = self._may

    def _may(self, spec: SubjectAccessReviewSpec) -> bool:
        asked = spec.resourceAttributes
        assert asked is not None
        return (asked.verb, asked.subresource) in self.rights


def https(agent: Agent, cluster: Reviews | None = None) -> NodeApi:
    reviews = cluster or Cluster()
    options = ApiOptions(enable_debug_flags_handler=True)
    settings = NodeApiSettings("127.0.0.1", options=options)
    return NodeApi(agent, settings, ReviewApis(reviews, reviews), inline_offload)  # type: ignore[arg-type]


def told(router: Router) -> set[tuple[str, str]]:
    return {(route.method, route.pattern) for route in router.routes}


def concrete(pattern: str) -> str:
    parts = [("a" if part.startswith("{") else part) for part in pattern.split("/")]
    return "/".join(parts)


def request(method: str, path: str, token: str = "") -> Request:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return Request(method, path, headers=headers)


async def refusal(api: NodeApi, asked: Request) -> int | None:
    """Return with which status a request is turned away before its handler, if it is."""
    try:
        await api._guard().admit(asked)
    except HttpError as exc:
        return exc.status
    return None


def test_the_table_names_every_route_of_every_door(agent: Agent) -> None:
    api = https(agent)
    wanted = {(method, path) for path, (methods, *_) in HTTPS.items() for method in methods}
    assert told(api._router()) == wanted
    assert told(api._router(read_only=True)) == READ_ONLY
    assert told(health_router(agent.check_functions())) == HEALTHZ
    assert told(loopback_page(agent)) == UI
    assert told(loopback_page(agent, PageSessions())) == UI | ACTIONS
    assert told(control_api(agent)) == CONTROL


@pytest.mark.parametrize("path", HTTPS)
async def test_strangers_and_those_without_rights_get_nowhere(
    agent: Agent, autojump_clock: object, path: str
) -> None:
    api = https(agent)
    for method in HTTPS[path][0]:
        assert await refusal(api, request(method, concrete(path))) == 401
        assert await refusal(api, request(method, concrete(path), "made-up")) == 401
        assert await refusal(api, request(method, concrete(path), "known")) == 403


@pytest.mark.parametrize("path", HTTPS)
async def test_one_right_opens_what_the_table_says_and_nothing_else(
    agent: Agent, autojump_clock: object, path: str
) -> None:
    methods, subresources, fixed = HTTPS[path]
    for method in methods:
        needed = {(fixed or VERBS[method], name) for name in subresources}
        for verb in VERBS.values():
            for subresource in SUBRESOURCES:
                api = https(agent, Cluster((verb, subresource)))
                got = await refusal(api, request(method, concrete(path), "known"))
                assert got == (None if (verb, subresource) in needed else 403), (
                    method,
                    verb,
                    subresource,
                )


async def test_an_administrator_gets_to_every_handler(agent: Agent, autojump_clock: object) -> None:
    rights = [(verb, name) for verb in VERBS.values() for name in SUBRESOURCES]
    api = https(agent, Cluster(*rights))
    for path, (methods, *_) in HTTPS.items():
        for method in methods:
            assert await refusal(api, request(method, concrete(path), "known")) is None
            route, _ = api._router().find(method, concrete(path))
            assert route.pattern == path


@pytest.mark.parametrize("path", ["/pods", "/stats/summary", "/metrics/resource"])
async def test_the_read_only_port_and_the_health_port_ask_nobody_who_they_are(
    agent: Agent, path: str
) -> None:
    router = https(agent)._router(read_only=True)
    assert router.find("GET", path)[0].pattern == path
    with pytest.raises(HttpError) as caught:
        await router(request("POST", "/exec/a/b/c"))
    assert caught.value.status == 405
    health = await health_router(agent.check_functions())(request("GET", "/livez/ping"))
    assert health.status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 302), ("127.0.0.1", 302), ("evil.example", 403), ("", 403)],
)
async def test_the_page_of_the_loopback_port_is_for_loopback_names(
    agent: Agent, host: str, status: int
) -> None:
    handler = loopback_only(loopback_page(agent))
    try:
        answer: Response | HttpError = await handler(Request("GET", "/", headers={"host": host}))
    except HttpError as exc:
        answer = exc
    assert answer.status == status


@pytest.mark.parametrize(("method", "path"), sorted(ACTIONS))
async def test_the_pages_actions_are_on_the_loopback_port_alone(
    agent: Agent, method: str, path: str
) -> None:
    """Not on the kubelet API, nor on the control socket, whose pages are the same otherwise."""
    asked = Request(
        method, concrete(path), headers={"host": "localhost", "origin": "http://localhost"}
    )
    for router in (node_page(agent), loopback_page(agent), control_api(agent, PageSessions())):
        with pytest.raises(HttpError) as refused:
            await router(asked)
        assert refused.value.status in (404, 405)


@pytest.mark.parametrize(("method", "path"), sorted(ACTIONS - {("GET", "/ui/session")}))
async def test_no_action_without_a_session(agent: Agent, method: str, path: str) -> None:
    handler = loopback_only(loopback_page(agent, PageSessions(lambda: 0.0)))
    headers = {
        "host": "localhost",
        "origin": "http://localhost",
        "content-type": "application/json",
    }
    with pytest.raises(HttpError) as refused:
        await handler(Request(method, concrete(path), headers=headers))
    assert refused.value.status == 403
    assert "kubelet-trio ui" in str(refused.value)


async def test_the_control_socket_opens_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "kubelet-trio.sock"
    async with open_unix(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(
    st.sampled_from(sorted(HTTPS)),
    st.lists(st.sampled_from(["/", "//", "/./", "/../", "/a/"]), min_size=7, max_size=7),
    st.sampled_from(["/", "//", "///", "", "/./", "x/../"]),
    st.sampled_from(["", "/", "//"]),
    st.sampled_from(sorted(VERBS)),
)
def test_what_is_asked_for_is_what_is_routed(
    pattern: str, between: list[str], before: str, after: str, method: str
) -> None:
    """No way of writing a path leads to a handler by a right that is not its own."""
    first, *parts = concrete(pattern).strip("/").split("/")
    joined = "".join(sep + part for sep, part in zip(between, parts, strict=False))
    path = before + first + joined + after
    try:
        route, _ = ROUTER.find(method, path)
    except HttpError:
        return
    asked = accesses(method, path, "n")
    _, subresources, fixed = HTTPS[route.pattern]
    assert {access.subresource for access in asked} == {*subresources}, path
    assert {access.verb for access in asked} == {fixed or VERBS[method]}, path


async def _answer(_: Request) -> Response:
    return Response()


ROUTER = Router()
for _pattern, (_methods, *_rest) in HTTPS.items():
    for _method in _methods:
        ROUTER.add(_method, _pattern, _answer)
