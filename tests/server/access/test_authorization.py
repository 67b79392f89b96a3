"""Who may: every route times every kind of caller."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.authentication_v1 import UserInfo
from lightkube.models.authorization_v1 import SubjectAccessReview, SubjectAccessReviewSpec
from trio.testing import MockClock

from kubelet_trio.server import (
    AccessReviews,
    Guard,
    HttpError,
    NodeAuthenticator,
    Request,
    Response,
    TokenReviews,
    allow_all,
)
from kubelet_trio.server.access.authorization import accesses
from kubelet_trio.testing import TrioClock
from tests.server.reviews import Reviews, unavailable

# Path -> the subresources of which one is enough, in the order in which they are asked.
ROUTES = {
    "/pods": ["pods", "proxy"],
    "/ui/": ["proxy"],
    "/ui/logs/default/web/web": ["proxy"],
    "/pods/": ["pods", "proxy"],
    "/runningpods/": ["pods", "proxy"],
    "/runningpods": ["pods", "proxy"],
    "/why/default/web": ["pods", "proxy"],
    "/healthz": ["healthz", "proxy"],
    "/healthz/ping": ["healthz", "proxy"],
    "/healthz/syncloop": ["healthz", "proxy"],
    "/configz": ["configz", "proxy"],
    "/statusz": ["statusz"],
    "/flagz": ["configz"],
    "/stats/summary": ["stats"],
    "/stats": ["stats"],
    "/metrics": ["metrics"],
    "/metrics/cadvisor": ["metrics"],
    "/metrics/resource": ["metrics"],
    "/metrics/probes": ["metrics"],
    "/metrics/slis": ["metrics"],
    "/logs/": ["log"],
    "/logs/syslog": ["log"],
    "/checkpoint/ns/pod/c": ["checkpoint"],
    "/containerLogs/ns/pod/c": ["proxy"],
    "/exec/ns/pod/c": ["proxy"],
    "/exec/ns/pod/uid/c": ["proxy"],
    "/attach/ns/pod/c": ["proxy"],
    "/attach/ns/pod/uid/c": ["proxy"],
    "/portForward/ns/pod": ["proxy"],
    "/portForward/ns/pod/uid": ["proxy"],
    "/run/ns/pod/c": ["proxy"],
    "/run/ns/pod/uid/c": ["proxy"],
    "/debug/pprof/": ["proxy"],
    "/debug/flags/v": ["proxy"],
    "/": ["proxy"],
    "/podsx": ["proxy"],
    "//pods": ["proxy"],
    "/metricsx/cadvisor": ["proxy"],
    "/stats../summary": ["proxy"],
}
VERBS = {
    "GET": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
    "HEAD": "",
    "OPTIONS": "",
}
# Token -> the subresources that its user may see; None for whoever has no identity.
TOKENS: dict[str, frozenset[str]] = {
    "prometheus": frozenset({"metrics", "stats"}),
    "metrics-server": frozenset({"metrics"}),
    "agent": frozenset({"pods", "healthz", "configz", "statusz"}),
    "admin": frozenset({"proxy", "stats", "log", "metrics", "checkpoint", "statusz", "configz"}),
    "nobody": frozenset(),
}


@pytest.mark.parametrize(("path", "names"), ROUTES.items())
@pytest.mark.parametrize(("method", "verb"), VERBS.items())
def test_what_a_route_needs(path: str, names: list[str], method: str, verb: str) -> None:
    asked = accesses(method, path, "node1")
    assert [access.subresource for access in asked] == names
    if path.startswith(("/exec/", "/attach/", "/portForward/", "/run/")):
        verb = "create"  # also of a WebSocket, which asks with GET
    assert {(access.verb, access.node) for access in asked} == {(verb, "node1")}


@given(st.text(alphabet="/podstamerichgz.x%", max_size=30))
def test_whatever_is_asked_needs_something(path: str) -> None:
    asked = accesses("GET", f"/{path}", "node1")
    first = f"/{path}".split("/")[1]
    assert asked
    # What is less than everything is given to its own first segment only.
    if asked[0].subresource != "proxy":
        allowed = {"pods", "runningpods", "healthz", "configz", "statusz", "stats", "metrics"}
        allowed |= {"flagz"}
        assert first in allowed | {"logs", "checkpoint"}


async def served(_: Request) -> Response:
    return Response(body=b"served")


def guard(kube: Reviews, *, anonymous: bool = False) -> Guard:
    authenticate = NodeAuthenticator(TrioClock(), TokenReviews(kube), anonymous)
    return Guard(served, authenticate, AccessReviews(kube), "node1")


def cluster() -> Reviews:
    kube = Reviews()
    kube.tokens = {token: UserInfo(username=token) for token in TOKENS}

    def may(spec: SubjectAccessReviewSpec) -> bool:
        asked = spec.resourceAttributes
        assert asked is not None
        assert (asked.resource, asked.name, asked.version) == ("nodes", "node1", "v1")
        return (asked.subresource or "") in TOKENS.get(spec.user or "", ())

    kube.may = may
    return kube


async def status_of(handler: Guard, path: str, token: str | None, method: str = "GET") -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        return (await handler(Request(method, path, headers=headers))).status
    except HttpError as exc:
        return exc.status


@pytest.mark.parametrize(("path", "names"), ROUTES.items())
async def test_every_route_times_identity(
    autojump_clock: MockClock, path: str, names: list[str]
) -> None:
    handler = guard(cluster())
    for token, allowed in TOKENS.items():
        expected = 200 if allowed & set(names) else 403
        assert await status_of(handler, path, token) == expected, token
    assert await status_of(handler, path, None) == 401
    assert await status_of(handler, path, "forged") == 401
    # Anonymous has an identity then, and the API server says no to it.
    assert await status_of(guard(cluster(), anonymous=True), path, None) == 403


async def test_a_refusal_says_who_what_and_why(autojump_clock: MockClock) -> None:
    with pytest.raises(HttpError) as caught:
        await guard(cluster())(Request("POST", "/pods", headers={"authorization": "Bearer nobody"}))
    assert str(caught.value) == (
        "Forbidden (user=nobody, verb=create, resource=nodes, subresource(s)=[pods proxy])"
    )
    with pytest.raises(HttpError, match=r"^Unauthorized$"):
        await guard(cluster())(Request("GET", "/pods"))


async def test_a_yes_holds_longer_than_a_no(autojump_clock: MockClock) -> None:
    kube = cluster()
    handler = guard(kube)

    async def asked_by(path: str, token: str) -> int:
        before = len(kube.asked)
        await status_of(handler, path, token)
        return sum(isinstance(asked, SubjectAccessReview) for asked in kube.asked[before:])

    assert await asked_by("/metrics", "admin") == 1
    assert await asked_by("/exec/ns/pod/c", "nobody") == 1
    assert await asked_by("/metrics", "admin") == 0
    assert await asked_by("/exec/ns/pod/c", "nobody") == 0
    await trio.sleep(60)
    assert await asked_by("/metrics", "admin") == 0
    assert await asked_by("/exec/ns/pod/c", "nobody") == 1
    await trio.sleep(300)
    assert await asked_by("/metrics", "admin") == 1


async def test_who_cannot_be_asked_about_is_not_let_in(autojump_clock: MockClock) -> None:
    kube = cluster()
    handler = guard(kube)
    assert await status_of(handler, "/stats/summary", "nobody") == 403
    kube.problem = unavailable()
    with pytest.raises(HttpError) as caught:
        await handler(Request("GET", "/metrics", headers={"authorization": "Bearer nobody"}))
    assert caught.value.status == 500
    assert str(caught.value).startswith("Authorization error (user=nobody, verb=get, ")


async def test_always_allow_still_wants_an_identity(autojump_clock: MockClock) -> None:
    kube = cluster()
    handler = Guard(served, NodeAuthenticator(TrioClock(), TokenReviews(kube)), allow_all, "n")
    assert await status_of(handler, "/exec/ns/pod/c", "nobody") == 200
    assert await status_of(handler, "/exec/ns/pod/c", None) == 401
