"""Authorization of requests: each one is a verb on `nodes/<subresource>` of this node.

The mapping is pure and does not depend on routes: a path without a route is `nodes/proxy` too.
The verb is the method's. Exec, attach, port-forward and run always need `create`, where the Go
kubelet asks for `get` if the client opens a WebSocket.

Source: pkg/kubelet/server/auth.go and server.go (InstallAuthFilter) with
KubeletFineGrainedAuthz; k8s.io/apiserver/plugin/pkg/authorizer/webhook.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import trio
from lightkube.models.authorization_v1 import (
    ResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
)

from kubelet_trio.kube import API_ERRORS
from kubelet_trio.model import get_logger
from kubelet_trio.server.access.authentication import Authenticator, Reviewer, User
from kubelet_trio.server.access.verdicts import RETRY_AFTER, Verdicts
from kubelet_trio.server.errors import AccessError, BusyError, HttpError, UnauthorizedError
from kubelet_trio.server.http.types import Handler, Headers, Request, Response

log = get_logger()

_VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# Fine-grained subresources (KEP-2862): asked first, then `proxy` if the answer is no.
_FINE_GRAINED = (
    ("/pods", "pods"),
    ("/healthz", "healthz"),
    ("/configz", "configz"),
    ("/runningpods", "pods"),
    ("/why", "pods"),  # not upstream's: it tells of a pod what its status tells, and more of it
)
# Paths with a subresource of their own, without `proxy` as an alternative.
_DEDICATED = (
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
)
# These run a command or open a connection into a pod. A WebSocket handshake is a GET: a client
# that may only read (`get nodes/proxy`, which monitoring often has) must not pass with it.
_STREAMS = ("/exec", "/attach", "/portForward", "/run")
_CALL_LIMIT = 10.0  # seconds for a SubjectAccessReview


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """What a request needs: a verb on `nodes/<subresource>` of the node with this name."""

    verb: str
    subresource: str
    node: str


class Authorizer(Protocol):
    async def __call__(self, user: User, access: NodeAccess) -> bool:
        """Return whether the user has the access. Raises `AccessError`."""
        ...


def accesses(method: str, path: str, node: str) -> tuple[NodeAccess, ...]:
    """Return what a request needs; any one of the accesses suffices. `path` is decoded."""
    is_stream = any(_is_below(path, prefix) for prefix in _STREAMS)
    verb = "create" if is_stream else _VERBS.get(method, "")
    needed = [name for prefix, name in _FINE_GRAINED if _is_below(path, prefix)][:1]
    needed += [name for prefix, name in _DEDICATED if _is_below(path, prefix)] or ["proxy"]
    return tuple(NodeAccess(verb, name, node) for name in needed)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


async def allow_all(user: User, access: NodeAccess) -> bool:
    """Allow every authenticated user: `authorization.mode: AlwaysAllow`."""
    return True


class AccessReviews:
    """Asks the API server (SubjectAccessReview) and caches its answers."""

    def __init__(
        self, kube: Reviewer, authorized_ttl: float = 300.0, unauthorized_ttl: float = 30.0
    ) -> None:
        self._kube = kube
        self._ttl = {True: authorized_ttl, False: unauthorized_ttl}
        self._verdicts: Verdicts[object, bool] = Verdicts()

    async def __call__(self, user: User, access: NodeAccess) -> bool:
        """Return whether the user has the access. Raises `AccessError`."""
        extra = tuple(sorted(user.extra.items()))
        key = (user.name, user.uid, user.groups, extra, access)
        try:
            return await self._verdicts.get(key, lambda: self._ask(user, access))
        except BusyError as exc:
            raise AccessError(f"SubjectAccessReview not sent: {exc}", is_busy=True) from exc

    async def _ask(self, user: User, access: NodeAccess) -> tuple[bool, float]:
        spec = SubjectAccessReviewSpec(
            user=user.name,
            uid=user.uid or None,
            groups=list(user.groups),
            extra={key: list(values) for key, values in user.extra.items()} or None,
            resourceAttributes=ResourceAttributes(
                verb=access.verb,
                version="v1",
                resource="nodes",
                subresource=access.subresource,
                name=access.node,
            ),
        )
        try:
            with trio.fail_after(_CALL_LIMIT):
                review = await self._kube.create(SubjectAccessReview(spec=spec))
        except (*API_ERRORS, trio.TooSlowError) as exc:
            raise AccessError(f"SubjectAccessReview failed: {exc}") from exc
        status = review.status
        # Both at once are an error for apiserver's webhook authorizer too.
        if status is None or (status.allowed and status.denied):
            raise AccessError("SubjectAccessReview without an answer, or both allowed and denied")
        allowed = bool(status.allowed) and not status.denied
        return allowed, self._ttl[allowed]


@dataclass(frozen=True, slots=True)
class Guard:
    """A `Handler` that authenticates and authorizes requests before another handles them."""

    handler: Handler
    authenticate: Authenticator
    authorize: Authorizer
    node: str

    async def __call__(self, request: Request) -> Response:
        """Answer a request that is allowed. Raises `HttpError` as `admit`."""
        await self.admit(request)
        return await self.handler(request)

    async def admit(self, request: Request) -> None:
        """Check a request by its head; its body need not have been read.

        Raises `HttpError`: 401 unauthenticated, 403 forbidden, 500 if the check itself failed.
        """
        try:
            user = await self.authenticate(request)
        except UnauthorizedError as exc:
            log.info("http.unauthorized", reason=str(exc), client=request.peer.address)
            headers = _retry(is_busy=exc.is_busy)
            raise HttpError(HTTPStatus.UNAUTHORIZED, "Unauthorized", headers, end="") from exc
        needed = accesses(request.method, request.path, self.node)
        for access in needed:
            try:
                if await self.authorize(user, access):
                    return
            except AccessError as exc:
                log.warning("http.not_decided", reason=str(exc), user=user.name)
                raise HttpError(
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    _undecided(user, access),
                    _retry(is_busy=exc.is_busy),
                    end="",
                ) from exc
        names = " ".join(access.subresource for access in needed)
        raise HttpError(
            HTTPStatus.FORBIDDEN,
            f"Forbidden (user={user.name}, verb={needed[0].verb}, resource=nodes, "
            f"subresource(s)=[{names}])",
        )


def _retry(*, is_busy: bool) -> Headers:
    return (("Retry-After", RETRY_AFTER),) if is_busy else ()


def _undecided(user: User, access: NodeAccess) -> str:
    return (
        f"Authorization error (user={user.name}, verb={access.verb}, resource=nodes, "
        f"subresource={access.subresource})"
    )
