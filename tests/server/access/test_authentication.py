"""Who asks: certificates, tokens, nobody; in that order."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import trio
from lightkube.models.authentication_v1 import UserInfo
from trio.testing import MockClock

from kubelet_trio.server import NodeAuthenticator, Request, TokenReviews
from kubelet_trio.server.access.authentication import User, bearer_token, without_token
from kubelet_trio.server.errors import UnauthorizedError
from kubelet_trio.server.http.types import ClientPeer
from kubelet_trio.testing import TrioClock
from tests.server.reviews import Reviews, unavailable


def certificate(*subject: tuple[str, str], expires: str = "Jan  1 00:00:00 2090 GMT") -> ClientPeer:
    told: dict[str, Any] = {"subject": tuple((pair,) for pair in subject), "notAfter": expires}
    return ClientPeer(certificate=told, certificate_der=b"der")


ALICE = certificate(("organizationName", "dev"), ("organizationName", "ops"), ("commonName", "al"))


def request(peer: ClientPeer | None = None, **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("GET", "/pods", headers=named, peer=peer or ClientPeer())


@pytest.fixture
def reviews() -> Reviews:
    kube = Reviews()
    kube.tokens["good"] = UserInfo(username="bob", uid="7", groups=["g"], extra={"k": ["v"]})
    return kube


def authenticator(kube: Reviews | None, *, anonymous: bool = False) -> NodeAuthenticator:
    tokens = TokenReviews(kube) if kube is not None else None
    return NodeAuthenticator(TrioClock(), tokens, anonymous)


async def test_a_certificate_names_user_and_groups(autojump_clock: MockClock) -> None:
    user = await authenticator(None)(request(ALICE))
    assert (user.name, user.groups) == ("al", ("dev", "ops", "system:authenticated"))
    [credential] = user.extra["authentication.kubernetes.io/credential-id"]
    assert credential.startswith("X509SHA256=")


async def test_a_certificate_that_ran_out_since_the_handshake_is_refused(
    autojump_clock: MockClock,
) -> None:
    old = certificate(("commonName", "al"), expires="Jan  1 00:00:00 1971 GMT")
    with pytest.raises(UnauthorizedError, match="expired"):
        await authenticator(None, anonymous=True)(request(old))


async def test_a_certificate_without_a_name_is_nobodys(autojump_clock: MockClock) -> None:
    nameless = certificate(("organizationName", "system:masters"))
    with pytest.raises(UnauthorizedError):
        await authenticator(None)(request(nameless))


async def test_a_token_is_asked_about_and_remembered(
    autojump_clock: MockClock, reviews: Reviews
) -> None:
    ask = authenticator(reviews)
    for _ in range(3):
        user = await ask(request(authorization="Bearer good"))
    assert user == User("bob", "7", ("g", "system:authenticated"), {"k": ("v",)})
    assert len(reviews.asked) == 1
    await trio.sleep(121)
    await ask(request(authorization="bearer   good"[:6] + " good"))
    assert len(reviews.asked) == 2


async def test_the_same_question_at_the_same_time_is_one_question(
    autojump_clock: MockClock, reviews: Reviews
) -> None:
    ask = authenticator(reviews)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask, request(authorization="Bearer good"))
    assert len(reviews.asked) == 1


async def test_a_certificate_comes_before_a_token(
    autojump_clock: MockClock, reviews: Reviews
) -> None:
    user = await authenticator(reviews)(request(ALICE, authorization="Bearer good"))
    assert user.name == "al"


@pytest.mark.parametrize("anonymous", [True, False])
async def test_a_bad_token_is_a_refusal_even_where_nobody_may_come_in(
    autojump_clock: MockClock, reviews: Reviews, anonymous: bool
) -> None:
    ask = authenticator(reviews, anonymous=anonymous)
    with pytest.raises(UnauthorizedError, match="invalid bearer token"):
        await ask(request(authorization="Bearer bad"))


async def test_nobody_is_anonymous_where_that_is_allowed(
    autojump_clock: MockClock, reviews: Reviews
) -> None:
    user = await authenticator(reviews, anonymous=True)(request())
    assert user == User("system:anonymous", groups=("system:unauthenticated",))
    with pytest.raises(UnauthorizedError):
        await authenticator(reviews)(request())
    assert reviews.asked == []


async def test_no_answer_is_a_refusal_and_is_not_remembered(
    autojump_clock: MockClock, reviews: Reviews
) -> None:
    ask = authenticator(reviews, anonymous=True)
    reviews.problem = unavailable()
    with pytest.raises(UnauthorizedError, match="no connection"):
        await ask(request(authorization="Bearer good"))
    reviews.problem = None
    assert (await ask(request(authorization="Bearer good"))).name == "bob"


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "  bearer abc def"}, "abc"),
        ({"authorization": "Basic abc"}, ""),
        ({"authorization": "Bearer"}, ""),
        ({"authorization": "Bearer "}, ""),
        ({}, ""),
        (
            {
                "sec_websocket_protocol": "v4.channel.k8s.io, base64url.bearer."
                "authorization.k8s.io." + base64.urlsafe_b64encode(b"t~n?").decode().rstrip("=")
            },
            "t~n?",
        ),
    ],
)
def test_where_a_token_may_be(headers: dict[str, str], token: str) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    assert bearer_token(Request("GET", "/", headers=named)) == token


def test_a_malformed_token_among_the_protocols_is_refused() -> None:
    with pytest.raises(UnauthorizedError, match="malformed"):
        bearer_token(request(sec_websocket_protocol="base64url.bearer.authorization.k8s.io.%%%%%"))


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("Authorization", "Bearer secret", ""),
        ("Sec-WebSocket-Protocol", "a, base64url.bearer.authorization.k8s.io.eA, b", "a, b"),
        ("Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io.eA", ""),
        ("Upgrade", "SPDY/3.1", "SPDY/3.1"),
    ],
)
def test_what_proves_who_asks_is_not_handed_on(name: str, value: str, left: str) -> None:
    assert without_token(name, value) == left
