"""Service accounts of an API server, and tokens of theirs. Nothing is kept of the accounts."""

from __future__ import annotations

from lightkube.models.core_v1 import ServiceAccount

from kubelet_trio.kube import API_ERRORS, KubeApi
from kubelet_trio.objects.errors import ObjectError
from kubelet_trio.objects.tokens import TokenRequest, TokenRequester


class ClusterAccounts:
    """What credential providers need (`credentials.Accounts`)."""

    def __init__(self, api: KubeApi, tokens: TokenRequester) -> None:
        self._api = api
        self._tokens = tokens

    async def account(self, namespace: str, name: str) -> ServiceAccount:
        try:
            return await self._api.get(ServiceAccount, name, namespace=namespace)
        except API_ERRORS as exc:
            raise ObjectError(f"service account {namespace}/{name}: {exc}") from exc

    async def token(self, request: TokenRequest) -> str:
        return await self._tokens.token(request)
