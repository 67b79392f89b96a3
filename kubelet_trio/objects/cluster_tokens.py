"""Service account tokens from the API server, each bound to its pod and renewed in time.

Nothing runs here: whoever brings a pod's volumes up to date asks for its tokens, gets the same
one until it is due, and then a new one. A node that is cut off goes on with what it has, to its
end; where memory is kept beyond that end, as a pod that runs goes on with the file that it has.
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

from kubelet_trio.kube import API_ERRORS, KubeApi, KubeUnavailableError
from kubelet_trio.model import PodUid, WallClock, get_logger
from kubelet_trio.objects.errors import ObjectError
from kubelet_trio.objects.memory import NO_MEMORY, ClusterMemory, KnownToken
from kubelet_trio.objects.tokens import TokenRequest

log = get_logger()

# When the Go kubelet renews: at 80 % of a token's life or after a day, up to 10 s earlier.
_LEFT = 0.2
_LONGEST = 24 * 3600.0
_JITTER = 10.0
_CUT_OFF_LIMIT = 2.0  # seconds for a server that has been silent since the start


class ClusterTokens:
    """A `TokenRequester` on an API server."""

    def __init__(self, api: KubeApi, clock: WallClock, memory: ClusterMemory = NO_MEMORY) -> None:
        self._api = api
        self._clock = clock
        self._memory = memory
        self._tokens: dict[TokenRequest, KnownToken] = {}

    async def token(self, request: TokenRequest) -> str:
        known = self._tokens.get(request)
        if known is None and self._memory.is_cut_off:
            known = self._memory.last_token(request)
        if known is not None and self._clock.time() < known.renew_at:
            return known.text
        try:
            fresh = await self._ask_in_time(request)
        except API_ERRORS as exc:
            known = known or self._memory.last_token(request)
            if known is not None and self._may_go_on(known, exc):
                log.warning("tokens.not_renewed", pod=str(request.pod), error=str(exc))
                return known.text
            raise ObjectError(_failure(request, exc, had_one=known is not None)) from exc
        self._tokens[request] = fresh
        self._memory.note_token(request, fresh)
        return fresh.text

    def forget(self, uid: PodUid) -> None:
        for request in [request for request in self._tokens if request.uid == uid]:
            del self._tokens[request]

    def _may_go_on(self, known: KnownToken, exc: Exception) -> bool:
        if self._clock.time() < known.expires_at:
            return True
        return self._memory.is_kept and isinstance(exc, KubeUnavailableError)

    async def _ask_in_time(self, request: TokenRequest) -> KnownToken:
        limit = _CUT_OFF_LIMIT if self._memory.is_cut_off else math.inf
        with trio.move_on_after(limit):
            return await self._ask(request)
        raise KubeUnavailableError(f"no answer within {limit:g} s")

    async def _ask(self, request: TokenRequest) -> KnownToken:
        asked = ApiTokenRequest(
            spec=TokenRequestSpec(
                audiences=[request.audience] if request.audience else [],
                expirationSeconds=request.expiration_seconds,
                boundObjectRef=BoundObjectReference(
                    apiVersion="v1", kind="Pod", name=request.pod.name, uid=request.uid
                ),
            )
        )
        answer = await self._api.create(
            asked,
            namespace=request.pod.namespace,
            name=request.service_account,
            subresource="token",
        )
        spec, status = answer.spec, answer.status
        if status is None or not status.token or status.expirationTimestamp is None:
            raise KubeUnavailableError("the answer to a TokenRequest holds no token")
        lifetime = (spec.expirationSeconds if spec is not None else 0) or request.expiration_seconds
        expires_at = status.expirationTimestamp.timestamp()
        return KnownToken(status.token, _renew_at(expires_at, lifetime), expires_at)


def _renew_at(expires_at: float, lifetime: float) -> float:
    issued_at = expires_at - lifetime
    return min(expires_at - _LEFT * lifetime, issued_at + _LONGEST) - random.uniform(0, _JITTER)


def _failure(request: TokenRequest, exc: Exception, *, had_one: bool) -> str:
    who = f"{request.pod.namespace}/{request.service_account}"
    if had_one:
        return f"token of service account {who} expired and refresh failed: {exc}"
    return f"failed to fetch token for service account {who}: {exc}"
