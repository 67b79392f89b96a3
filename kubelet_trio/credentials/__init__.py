"""Logins for registries: pull secrets, docker configs, credential provider programs."""

from kubelet_trio.credentials.docker_config import secret_logins
from kubelet_trio.credentials.keyring import Keyring, NodeKeyring, NoKeyring
from kubelet_trio.credentials.matching import Login, Logins, lookup, matches, repository
from kubelet_trio.credentials.plugins import Plugin, ProviderError, make_plugins
from kubelet_trio.credentials.provider_config import Provider, load_providers

__all__ = [
    "Keyring",
    "Login",
    "Logins",
    "NoKeyring",
    "NodeKeyring",
    "Plugin",
    "Provider",
    "ProviderError",
    "load_providers",
    "lookup",
    "make_plugins",
    "matches",
    "repository",
    "secret_logins",
]
