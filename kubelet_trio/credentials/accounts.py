"""Service account tokens for credential providers: a pod may pull what its account may pull.

A provider with `tokenAttributes` gets a token of the pod's service account, bound to the pod, and
annotations of the account. Source: KEP-4412, pkg/credentialprovider/plugin (1.36).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kubelet_trio.credentials.errors import NotApplicableError
from kubelet_trio.credentials.matching import AccountSource
from kubelet_trio.model import PodKey, PodUid, sha256
from kubelet_trio.objects import ObjectError, TokenRequest

if TYPE_CHECKING:
    from lightkube.models.core_v1 import ServiceAccount


@dataclass(frozen=True, slots=True)
class TokenAttributes:
    """`tokenAttributes` of a provider."""

    audience: str
    is_required: bool  # the provider is not asked for pods without a service account
    is_per_token: bool  # its answers are cached for one token; else for the account's pods
    required_annotations: tuple[str, ...] = ()
    optional_annotations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Puller:
    """The pod that an image is pulled for."""

    pod: PodKey
    uid: PodUid
    service_account: str = ""  # empty for static pods


class Accounts(Protocol):
    """The cluster's service accounts."""

    async def account(self, namespace: str, name: str) -> ServiceAccount:
        """Return the current state of an account. Raises `ObjectError`."""
        ...

    async def token(self, request: TokenRequest) -> str:
        """Return a valid token. Raises `ObjectError`."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """The token and annotations that a provider gets for one pod."""

    source: AccountSource
    annotations: Mapping[str, str]
    token: str = field(repr=False)
    is_per_token: bool
    cache_scope: tuple[object, ...]  # who may use a cached answer


async def grant_of(
    attributes: TokenAttributes, puller: Puller | None, accounts: Accounts | None
) -> Grant | None:
    """Return the token and annotations for a pod; None if it has no account and needs none.

    Raises:
        NotApplicableError: the provider must not be asked.
        ObjectError: the account or the token is not available.
    """
    if puller is None or not puller.service_account:
        if attributes.is_required:
            raise NotApplicableError("the pod has no service account")
        return None
    namespace, name = puller.pod.namespace, puller.service_account
    if accounts is None:
        raise ObjectError("service accounts need an API server")
    account = (await accounts.account(namespace, name)).metadata
    assert account is not None  # API servers always send it
    found = account.annotations or {}
    for key in attributes.required_annotations:
        if key not in found:
            raise NotApplicableError(f"service account {namespace}/{name} has no annotation {key}")
    given = (*attributes.required_annotations, *attributes.optional_annotations)
    # Sorted: their order is part of the cache scope below.
    annotations = {key: found[key] for key in sorted(given) if key in found}
    source = AccountSource(account.uid or "", namespace, name)
    token = await accounts.token(TokenRequest(puller.pod, puller.uid, name, attributes.audience))
    scope: tuple[object, ...] = (source, tuple(annotations.items()))
    # The token is hashed: a cache key must not hold it.
    if attributes.is_per_token:
        scope = (*scope, puller.uid, sha256(token.encode()).hexdigest())
    return Grant(source, annotations, token, attributes.is_per_token, scope)
