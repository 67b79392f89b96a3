"""The seam to service account tokens, which only an API server can give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kubelet_trio.model import PodKey, PodUid
from kubelet_trio.objects.errors import ObjectError


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A token of a service account, bound to one pod."""

    pod: PodKey
    uid: PodUid
    service_account: str
    audience: str = ""  # "": the API server's own
    expiration_seconds: int = 3600


class TokenRequester(Protocol):
    """Gives tokens, the same one until it is due to be renewed (80 % of its life)."""

    async def token(self, request: TokenRequest) -> str:
        """Return a valid token. Raises `ObjectError`."""
        ...

    def forget(self, uid: PodUid) -> None:
        """Drop the tokens of a pod that is gone."""
        ...


class NoTokens:
    """A node without an API server has none to give."""

    async def token(self, request: TokenRequest) -> str:
        raise ObjectError(
            "service account tokens need an API server: "
            f'there is no token for service account "{request.service_account}"'
        )

    def forget(self, uid: PodUid) -> None:
        """Nothing was kept."""
