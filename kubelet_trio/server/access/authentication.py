"""Authentication of requests: client certificate, bearer token, anonymous.

Tried in the Go kubelet's order. A request without credentials is anonymous where that is allowed;
one with an invalid token is refused even then, and so is one that cannot be checked.

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
from kubelet_trio.server.access.verdicts import Verdicts
from kubelet_trio.server.errors import BusyError, UnauthorizedError
from kubelet_trio.server.http.types import ClientPeer, Request

log = get_logger()
T = TypeVar("T")

# Names of k8s.io/apiserver/pkg/authentication/user.
ANONYMOUS = "system:anonymous"
UNAUTHENTICATED = "system:unauthenticated"
AUTHENTICATED = "system:authenticated"
_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
_PROTOCOLS = "sec-websocket-protocol"
_TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io."
_CALL_LIMIT = 10.0  # seconds for a TokenReview


@dataclass(frozen=True, slots=True)
class User:
    """The identity of an authenticated client."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Authenticator(Protocol):
    async def __call__(self, request: Request) -> User:
        """Return the user who sent the request. Raises `UnauthorizedError`."""
        ...


class Reviewer(Protocol):
    """The part of `KubeApi` that reviews need."""

    # Raises `KubeError` and `KubeUnavailableError` (`API_ERRORS`).
    async def create(self, obj: T, /) -> T: ...


class TokenReviews:
    """Asks the API server about tokens (TokenReview) and caches its answers."""

    def __init__(self, kube: Reviewer, ttl: float = 120.0) -> None:
        self._kube = kube
        self._verdicts: Verdicts[bytes, User | None] = Verdicts()
        self._ttl = ttl

    async def user(self, token: str, source: str = "") -> User | None:
        """Return the user of a token; None for an invalid one. Raises `UnauthorizedError`.

        `source` is the client's address.
        """
        # Hashed, so that the cache holds no tokens.
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        try:
            return await self._verdicts.get(key, lambda: self._ask(token), source)
        except BusyError as exc:
            raise UnauthorizedError(f"TokenReview not sent: {exc}", is_busy=True) from exc

    async def _ask(self, token: str) -> tuple[User | None, float]:
        try:
            with trio.fail_after(_CALL_LIMIT):
                review = await self._kube.create(TokenReview(spec=TokenReviewSpec(token=token)))
        except (*API_ERRORS, trio.TooSlowError) as exc:
            raise UnauthorizedError(f"TokenReview failed: {exc}") from exc
        status = review.status
        if status is None or not status.authenticated or status.user is None:
            return None, self._ttl
        info = status.user
        extra = {key: tuple(values) for key, values in (info.extra or {}).items()}
        user = User(info.username or "", info.uid or "", tuple(info.groups or ()), extra)
        return user, self._ttl


@dataclass(frozen=True, slots=True)
class NodeAuthenticator:
    """The configured authentication methods; without any, every request is refused."""

    clock: WallClock
    tokens: TokenReviews | None = None
    anonymous: bool = False

    async def __call__(self, request: Request) -> User:
        """Return the user who sent the request. Raises `UnauthorizedError`."""
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


def certificate_user(peer: ClientPeer, now: float) -> User | None:
    """Return the user that a client certificate names: CN is the name, every O a group.

    Raises `UnauthorizedError` for a certificate that has expired since the handshake.
    """
    certificate = peer.certificate
    if certificate is None:
        return None
    # Checked for each request: the handshake of a long connection may be days ago.
    if ssl.cert_time_to_seconds(certificate["notAfter"]) < now:
        raise UnauthorizedError("the client certificate has expired")
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for kind, value in subject if kind == "commonName"]
    # Of several common names the last counts: Go's pkix.Name overwrites the earlier ones.
    if not names or not names[-1]:
        return None
    groups = tuple(value for kind, value in subject if kind == "organizationName")
    fingerprint = hashlib.sha256(peer.certificate_der).hexdigest()
    return User(names[-1], groups=groups, extra={_CREDENTIAL_ID: (f"X509SHA256={fingerprint}",)})


def bearer_token(request: Request) -> str:
    """Return the token of a request; empty if there is none. Raises `UnauthorizedError`.

    Browsers cannot set headers of a WebSocket, so it may be one of the WebSocket protocols.
    """
    scheme, _, rest = request.headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and (token := rest.partition(" ")[0]):
        return token
    for protocol in request.headers.get(_PROTOCOLS, "").split(","):
        name = protocol.strip()
        if name.startswith(_TOKEN_PROTOCOL):
            encoded = name.removeprefix(_TOKEN_PROTOCOL)
            try:
                # The client sends it without padding (websocket/protocol.go), which Python needs.
                padded = encoded + "=" * (-len(encoded) % 4)
                return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
            except (binascii.Error, ValueError) as exc:
                raise UnauthorizedError("a malformed token among the WebSocket protocols") from exc
    return ""


def without_token(name: str, value: str) -> str:
    """Return a header's value without credentials, as it may be forwarded."""
    if name.lower() == "authorization":
        return ""
    if name.lower() == _PROTOCOLS:
        protocols = (protocol.strip() for protocol in value.split(","))
        return ", ".join(p for p in protocols if not p.startswith(_TOKEN_PROTOCOL))
    return value


def _with_group(user: User) -> User:
    """Add `system:authenticated`, as apiserver's AuthenticatedGroupAdder."""
    if AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return User(user.name, user.uid, (*user.groups, AUTHENTICATED), user.extra)
