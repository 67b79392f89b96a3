"""Service accounts for credential providers: what a pod's own account may pull, the pod may.

A provider with `tokenAttributes` is given a token of the pod's service account, bound to the pod,
and annotations of the account. Source: KEP-4412, pkg/credentialprovider/plugin (1.36).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kubelet_trio.credentials.matching import AccountSource
from kubelet_trio.model import PodKey, PodUid, sha256
from kubelet_trio.objects import ObjectError, TokenRequest

if TYPE_CHECKING:
    from lightkube.models.core_v1 import ServiceAccount


@dataclass(frozen=True, slots=True)
class TokenAttributes:
    """`tokenAttributes` of a provider."""

    audience: str
    is_required: bool  # pods without a service account are no business of the provider
    is_per_token: bool  # its answers are for one token; else for all pods of the account
    required_annotations: tuple[str, ...] = ()
    optional_annotations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Puller:
    """The pod that an image is for."""

    pod: PodKey
    uid: PodUid
    service_account: str = ""  # "": none, as static pods


class Accounts(Protocol):
    """The cluster's service accounts."""

    async def account(self, namespace: str, name: str) -> ServiceAccount:
        """Return an account as it is now. Raises `ObjectError`."""
        ...

    async def token(self, request: TokenRequest) -> str:
        """Return a valid token. Raises `ObjectError`."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """What a provider is given for one pod."""

    source: AccountSource
    annotations: Mapping[str, str]
    token: str = field(repr=False)
    is_per_token: bool
    whose: tuple[object, ...]  # whom an answer is for


class NotForItError(Exception):
    """The account, or that there is none, says that the provider is not to be asked."""


async def grant_of(
    attributes: TokenAttributes, puller: Puller | None, accounts: Accounts | None
) -> Grant | None:
    """Return what to give; None for a pod without an account, for which it may be asked as well.

    Raises:
        NotForItError: it may not be asked.
        ObjectError: the account or the token cannot be had.
    """
    if puller is None or not puller.service_account:
        if attributes.is_required:
            raise NotForItError("the pod has no service account")
        return None
    namespace, name = puller.pod.namespace, puller.service_account
    if accounts is None:
        raise ObjectError("service accounts need an API server")
    account = (await accounts.account(namespace, name)).metadata
    assert account is not None  # an API server's
    found = account.annotations or {}
    for key in attributes.required_annotations:
        if key not in found:
            raise NotForItError(f"service account {namespace}/{name} has no annotation {key}")
    given = (*attributes.required_annotations, *attributes.optional_annotations)
    annotations = {key: found[key] for key in sorted(given) if key in found}
    source = AccountSource(account.uid or "", namespace, name)
    token = await accounts.token(TokenRequest(puller.pod, puller.uid, name, attributes.audience))
    whose: tuple[object, ...] = (source, tuple(annotations.items()))
    if attributes.is_per_token:
        whose = (*whose, puller.uid, sha256(token.encode()).hexdigest())
    return Grant(source, annotations, token, attributes.is_per_token, whose)
