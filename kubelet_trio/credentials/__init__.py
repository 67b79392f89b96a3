"""Logins for registries, and the records of which pods may use which images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.credentials.accounts import Accounts, Puller, TokenAttributes
from kubelet_trio.credentials.docker_config import secret_logins
from kubelet_trio.credentials.errors import ProviderError
from kubelet_trio.credentials.image_access import ImageAccess
from kubelet_trio.credentials.keyring import Keyring, NodeKeyring, NoKeyring
from kubelet_trio.credentials.matching import (
    AccountSource,
    Login,
    Logins,
    lookup,
    matches,
    repository,
    untagged,
)
from kubelet_trio.credentials.pulled import PullVerification, allowlist_problem

if TYPE_CHECKING:
    from kubelet_trio.credentials.plugins import Plugin, make_plugins
    from kubelet_trio.credentials.provider_config import Provider, load_providers, providers_hash

# Only for nodes with credential providers.
_DEFERRED = {
    "Plugin": "plugins",
    "Provider": "provider_config",
    "load_providers": "provider_config",
    "make_plugins": "plugins",
    "providers_hash": "provider_config",
}

__all__ = [
    "AccountSource",
    "Accounts",
    "ImageAccess",
    "Keyring",
    "Login",
    "Logins",
    "NoKeyring",
    "NodeKeyring",
    "Plugin",
    "Provider",
    "ProviderError",
    "PullVerification",
    "Puller",
    "TokenAttributes",
    "allowlist_problem",
    "load_providers",
    "lookup",
    "make_plugins",
    "matches",
    "providers_hash",
    "repository",
    "secret_logins",
    "untagged",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
