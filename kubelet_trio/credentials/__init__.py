"""Logins for registries: pull secrets, docker configs, credential provider programs."""

from kubelet_trio.credentials.docker_config import secret_logins
from kubelet_trio.credentials.image_access import ImageAccess
from kubelet_trio.credentials.keyring import Keyring, NodeKeyring, NoKeyring
from kubelet_trio.credentials.matching import (
    Login,
    Logins,
    SecretSource,
    lookup,
    matches,
    repository,
)
from kubelet_trio.credentials.plugins import Plugin, ProviderError, make_plugins
from kubelet_trio.credentials.provider_config import Provider, load_providers
from kubelet_trio.credentials.pulled import PullVerification, allowlist_problem

__all__ = [
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
    "SecretSource",
    "allowlist_problem",
    "load_providers",
    "lookup",
    "make_plugins",
    "matches",
    "repository",
    "secret_logins",
]
