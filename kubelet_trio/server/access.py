"""Who may: every request becomes a question about `nodes/<subresource>` of this node.

The mapping is pure and needs no route to exist: what nobody serves is `nodes/proxy`, too.
The verb is the method's, but `create` for what runs something, where the Go kubelet takes `get`
of a WebSocket.

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
from kubelet_trio.server.http import Handler, Headers, HttpError, Request, Response
from kubelet_trio.server.identity import Authenticator, Reviewer, UnauthorizedError, User
from kubelet_trio.server.verdicts import RETRY_AFTER, BusyError, Verdicts

log = get_logger()

_VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# Asked first, and `proxy` after it where the answer is no.
_FINE = (
    ("/pods", "pods"),
    ("/healthz", "healthz"),
    ("/configz", "configz"),
    ("/runningpods", "pods"),
)
_OWN = (
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
)
# They run a command or reach into a pod: a WebSocket asks with GET, and whoever may only read
# (`get nodes/proxy`, which monitoring is often given) must not get in by it.
_STREAMS = ("/exec", "/attach", "/portForward", "/run")
_CALL_LIMIT = 10.0  # seconds for a SubjectAccessReview


@dataclass(frozen=True, slots=True)
class Access:
    """What is asked for: a verb on `nodes/<subresource>` named after this node."""

    verb: str
    subresource: str
    node: str


class AccessError(Exception):
    """It could not be decided, which is a no; the message is for the log.

    `is_busy`: it could not be now, and may be later.
    """

    def __init__(self, message: str, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_busy = is_busy


class Authorizer(Protocol):
    async def __call__(self, user: User, access: Access) -> bool:
        """Whether this user may. Raises `AccessError`."""
        ...


def accesses(method: str, path: str, node: str) -> tuple[Access, ...]:
    """Return what a request needs: any one of these is enough. `path` is decoded."""
    is_stream = any(_is_below(path, prefix) for prefix in _STREAMS)
    verb = "create" if is_stream else _VERBS.get(method, "")
    wanted = [name for prefix, name in _FINE if _is_below(path, prefix)][:1]
    wanted += [name for prefix, name in _OWN if _is_below(path, prefix)] or ["proxy"]
    return tuple(Access(verb, name, node) for name in wanted)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


async def allow_all(user: User, access: Access) -> bool:
    """Let everybody in who has an identity: `authorization.mode: AlwaysAllow`."""
    return True


class AccessReviews:
    """Asks the API server by SubjectAccessReview and remembers what it said."""

    def __init__(
        self, kube: Reviewer, authorized_ttl: float = 300.0, unauthorized_ttl: float = 30.0
    ) -> None:
        self._kube = kube
        self._ttl = {True: authorized_ttl, False: unauthorized_ttl}
        self._verdicts: Verdicts[object, bool] = Verdicts()

    async def __call__(self, user: User, access: Access) -> bool:
        """Whether this user may. Raises `AccessError`."""
        extra = tuple(sorted(user.extra.items()))
        key = (user.name, user.uid, user.groups, extra, access)
        try:
            return await self._verdicts.get(key, lambda: self._ask(user, access))
        except BusyError as exc:
            raise AccessError(f"SubjectAccessReview not asked for: {exc}", is_busy=True) from exc

    async def _ask(self, user: User, access: Access) -> tuple[bool, float]:
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
        if status is None or (status.allowed and status.denied):
            raise AccessError("SubjectAccessReview says nothing, or yes and no at once")
        allowed = bool(status.allowed) and not status.denied
        return allowed, self._ttl[allowed]


@dataclass(frozen=True, slots=True)
class Guard:
    """A `Handler` in front of another that lets through who may."""

    handler: Handler
    authenticate: Authenticator
    authorize: Authorizer
    node: str

    async def __call__(self, request: Request) -> Response:
        """Answer who may. Raises `HttpError` as `admit`."""
        await self.admit(request)
        return await self.handler(request)

    async def admit(self, request: Request) -> None:
        """Let a request pass by its head alone; its body need not have been read.

        Raises `HttpError`: 401 unauthenticated, 403 forbidden, 500 if the check itself failed.
        """
        try:
            user = await self.authenticate(request)
        except UnauthorizedError as exc:
            log.info("http.unauthorized", reason=str(exc), client=request.peer.address)
            headers = _retry(is_busy=exc.is_busy)
            raise HttpError(HTTPStatus.UNAUTHORIZED, "Unauthorized", headers, end="") from exc
        asked = accesses(request.method, request.path, self.node)
        for access in asked:
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
        names = " ".join(access.subresource for access in asked)
        raise HttpError(
            HTTPStatus.FORBIDDEN,
            f"Forbidden (user={user.name}, verb={asked[0].verb}, resource=nodes, "
            f"subresource(s)=[{names}])",
        )


def _retry(*, is_busy: bool) -> Headers:
    return (("Retry-After", RETRY_AFTER),) if is_busy else ()


def _undecided(user: User, access: Access) -> str:
    return (
        f"Authorization error (user={user.name}, verb={access.verb}, resource=nodes, "
        f"subresource={access.subresource})"
    )
