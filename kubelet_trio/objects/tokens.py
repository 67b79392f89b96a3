"""Service account tokens of the API server, bound to a pod and renewed in time.

There is no task: a pod's volumes ask for its tokens whenever they are refreshed. They get the
same token until it is due for renewal, then a new one.
"""

from __future__ import annotations

import math
import random

import trio
from lightkube.models.authentication_v1 import (
    BoundObjectReference,
    TokenRequestSpec,
)
from lightkube.models.authentication_v1 import (
    TokenRequest as ApiTokenRequest,
)
from lightkube.models.core_v1 import ServiceAccount

from kubelet_trio.kube import API_ERRORS, KubeApi, KubeUnavailableError
from kubelet_trio.model import PodUid, WallClock, get_logger
from kubelet_trio.objects.errors import ObjectError
from kubelet_trio.objects.issued import TokenRequester
from kubelet_trio.objects.memory import NO_MEMORY, ClusterMemory, KnownToken, TokenRequest

log = get_logger()

# The Go kubelet renews at 80 % of a token's lifetime or after a day, up to 10 s earlier
# (pkg/kubelet/token/token_manager.go).
_LEFT = 0.2
_LONGEST = 24 * 3600.0
_JITTER = 10.0
_CUT_OFF_LIMIT = 2.0  # seconds for a server that has not answered since the start


class ClusterTokens:
    """A `TokenRequester` on an API server."""

    def __init__(self, api: KubeApi, clock: WallClock, memory: ClusterMemory = NO_MEMORY) -> None:
        self._api = api
        self._clock = clock
        self._memory = memory
        self._tokens: dict[TokenRequest, KnownToken] = {}

    async def token(self, request: TokenRequest) -> str:
        """Return a token, a new one if it is due for renewal. Raises `ObjectError`."""
        return (await self.issue(request)).text

    async def issue(self, request: TokenRequest) -> KnownToken:
        """Return a token with its times, as `token`. Raises `ObjectError`."""
        known = self._tokens.get(request)
        if known is None and self._memory.is_cut_off:
            known = self._memory.last_token(request)
        if known is not None and self._clock.time() < known.renew_at:
            return known
        try:
            fresh = await self._request_in_time(request)
        except API_ERRORS as exc:
            known = known or self._memory.last_token(request)
            if known is not None and self._may_use(known, exc):
                log.warning("tokens.not_renewed", pod=str(request.pod), error=str(exc))
                return known
            raise ObjectError(_failure(request, exc, is_renewal=known is not None)) from exc
        self._tokens[request] = fresh
        self._memory.note_token(request, fresh)
        return fresh

    def forget(self, uid: PodUid) -> None:
        """Drop the tokens of a pod that is gone."""
        for request in [request for request in self._tokens if request.uid == uid]:
            del self._tokens[request]

    def _may_use(self, known: KnownToken, exc: Exception) -> bool:
        """Return whether an old token is usable after a failed renewal."""
        if self._clock.time() < known.expires_at:
            return True
        # With --offline-pods even an expired one: a running pod keeps its file as well.
        return self._memory.is_kept and isinstance(exc, KubeUnavailableError)

    async def _request_in_time(self, request: TokenRequest) -> KnownToken:
        limit = _CUT_OFF_LIMIT if self._memory.is_cut_off else math.inf
        with trio.move_on_after(limit):
            return await self._request(request)
        raise KubeUnavailableError(f"no answer within {limit:g} s")

    async def _request(self, request: TokenRequest) -> KnownToken:
        body = ApiTokenRequest(
            spec=TokenRequestSpec(
                audiences=[request.audience] if request.audience else [],
                expirationSeconds=request.expiration_seconds,
                boundObjectRef=BoundObjectReference(
                    apiVersion="v1", kind="Pod", name=request.pod.name, uid=request.uid
                ),
            )
        )
        answer = await self._api.create(
            body,
            namespace=request.pod.namespace,
            name=request.service_account,
            subresource="token",
        )
        spec, status = answer.spec, answer.status
        if status is None or not status.token or status.expirationTimestamp is None:
            raise KubeUnavailableError("the answer to a TokenRequest holds no token")
        # The server may grant another lifetime than requested.
        lifetime = (spec.expirationSeconds if spec is not None else 0) or request.expiration_seconds
        expires_at = status.expirationTimestamp.timestamp()
        return KnownToken(status.token, _renew_at(expires_at, lifetime), expires_at)


def _renew_at(expires_at: float, lifetime: float) -> float:
    issued_at = expires_at - lifetime
    return min(expires_at - _LEFT * lifetime, issued_at + _LONGEST) - random.uniform(0, _JITTER)


def _failure(request: TokenRequest, exc: Exception, *, is_renewal: bool) -> str:
    if is_renewal:
        account = f"{request.pod.namespace}/{request.service_account}"
        return f"token of service account {account} expired and refresh failed: {exc}"
    return f"failed to fetch token: {exc}"


class ClusterAccounts:
    """Service accounts and their tokens, for credential providers (`credentials.Accounts`)."""

    def __init__(self, api: KubeApi, tokens: TokenRequester) -> None:
        self._api = api
        self._tokens = tokens

    async def account(self, namespace: str, name: str) -> ServiceAccount:
        """Read a service account. Raises `ObjectError`."""
        try:
            return await self._api.get(ServiceAccount, name, namespace=namespace)
        except API_ERRORS as exc:
            raise ObjectError(f"service account {namespace}/{name}: {exc}") from exc

    async def token(self, request: TokenRequest) -> str:
        """Return a valid token. Raises `ObjectError`."""
        return await self._tokens.token(request)
