"""Who asks: a client certificate, a bearer token, or nobody in particular.

Tried in the Go kubelet's order. Nothing to go by is anonymous where that is allowed; a token
that is no good is a refusal even then. Whatever cannot be decided is a refusal too.

Source: pkg/kubelet/server/auth, cmd/kubelet/app/auth.go and
k8s.io/apiserver/pkg/authentication (x509, bearertoken, websocket, token/cache, union).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import trio
from lightkube.models.authentication_v1 import TokenReview, TokenReviewSpec

from kubelet_trio.kube import API_ERRORS
from kubelet_trio.model import WallClock, get_logger
from kubelet_trio.server.http import Peer, Request
from kubelet_trio.server.verdicts import BusyError, Verdicts

log = get_logger()
T = TypeVar("T")

ANONYMOUS = "system:anonymous"
UNAUTHENTICATED = "system:unauthenticated"
AUTHENTICATED = "system:authenticated"
_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
_PROTOCOLS = "sec-websocket-protocol"
_TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io."
_CALL_LIMIT = 10.0  # seconds for a TokenReview


@dataclass(frozen=True, slots=True)
class User:
    """Who was found to ask."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class UnauthorizedError(Exception):
    """Nobody who may be told anything; the message is for the log.

    `is_busy`: it could not be found out now, and may be later.
    """

    def __init__(self, message: str, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_busy = is_busy


class Authenticator(Protocol):
    async def __call__(self, request: Request) -> User:
        """Return who asks. Raises `UnauthorizedError`."""
        ...


class Reviewer(Protocol):
    """The part of `KubeApi` that reviews need."""

    async def create(self, obj: T, /) -> T: ...


class TokenReviews:
    """Asks the API server about tokens and remembers what it said."""

    def __init__(self, kube: Reviewer, ttl: float = 120.0) -> None:
        self._kube = kube
        self._verdicts: Verdicts[bytes, User | None] = Verdicts()
        self._ttl = ttl

    async def user(self, token: str, source: str = "") -> User | None:
        """Return whose token it is; None for nobody's. Raises `UnauthorizedError`.

        `source` is the address of who shows it.
        """
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        try:
            return await self._verdicts.get(key, lambda: self._ask(token), source)
        except BusyError as exc:
            raise UnauthorizedError(f"TokenReview not asked for: {exc}", is_busy=True) from exc

    async def _ask(self, token: str) -> tuple[User | None, float]:
        try:
            with trio.fail_after(_CALL_LIMIT):
                review = await self._kube.create(TokenReview(spec=TokenReviewSpec(token=token)))
        except (*API_ERRORS, trio.TooSlowError) as exc:
            raise UnauthorizedError(f"TokenReview failed: {exc}") from exc
        status = review.status
        if status is None or not status.authenticated or status.user is None:
            return None, self._ttl
        told = status.user
        extra = {key: tuple(values) for key, values in (told.extra or {}).items()}
        user = User(told.username or "", told.uid or "", tuple(told.groups or ()), extra)
        return user, self._ttl


@dataclass(frozen=True, slots=True)
class NodeAuthenticator:
    """The ways in that the configuration opens; without any it is shut."""

    clock: WallClock
    tokens: TokenReviews | None = None
    anonymous: bool = False

    async def __call__(self, request: Request) -> User:
        """Return who asks. Raises `UnauthorizedError`."""
        user = certificate_user(request.peer, self.clock.time())
        token = bearer_token(request)
        if user is None and token and self.tokens is not None:
            user = await self.tokens.user(token, request.peer.address)
            if user is None:
                raise UnauthorizedError("invalid bearer token")
        if user is not None:
            return _with_group(user)
        if self.anonymous:
            return User(ANONYMOUS, groups=(UNAUTHENTICATED,))
        raise UnauthorizedError("no identity")


def certificate_user(peer: Peer, now: float) -> User | None:
    """Return whom a client certificate names: CN is the user, every O a group.

    Raises `UnauthorizedError` for one that has run out since the handshake.
    """
    certificate = peer.certificate
    if certificate is None:
        return None
    if ssl.cert_time_to_seconds(certificate["notAfter"]) < now:
        raise UnauthorizedError("the client certificate has expired")
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for kind, value in subject if kind == "commonName"]
    if not names or not names[-1]:
        return None
    groups = tuple(value for kind, value in subject if kind == "organizationName")
    fingerprint = hashlib.sha256(peer.certificate_der).hexdigest()
    return User(names[-1], groups=groups, extra={_CREDENTIAL_ID: (f"X509SHA256={fingerprint}",)})


def bearer_token(request: Request) -> str:
    """Return the token of a request; empty if there is none.

    Browsers cannot set headers of a WebSocket, so it may hide among the protocols there.
    """
    scheme, _, rest = request.headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and (token := rest.partition(" ")[0]):
        return token
    for protocol in request.headers.get(_PROTOCOLS, "").split(","):
        name = protocol.strip()
        if name.startswith(_TOKEN_PROTOCOL):
            encoded = name.removeprefix(_TOKEN_PROTOCOL)
            try:
                padded = encoded + "=" * (-len(encoded) % 4)
                return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
            except (binascii.Error, ValueError) as exc:
                raise UnauthorizedError("a malformed token among the WebSocket protocols") from exc
    return ""


def without_token(name: str, value: str) -> str:
    """Return a header as it may be handed on: without what proved who asks."""
    if name.lower() == "authorization":
        return ""
    if name.lower() == _PROTOCOLS:
        protocols = (protocol.strip() for protocol in value.split(","))
        return ", ".join(p for p in protocols if not p.startswith(_TOKEN_PROTOCOL))
    return value


def _with_group(user: User) -> User:
    if AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return User(user.name, user.uid, (*user.groups, AUTHENTICATED), user.extra)
