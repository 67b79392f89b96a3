"""The logins for an image: of the pod's secrets, the node's files and credential providers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from kubelet_trio.credentials.accounts import Puller
from kubelet_trio.credentials.docker_config import home_directory, node_logins
from kubelet_trio.credentials.errors import ProviderError
from kubelet_trio.credentials.matching import Login, Logins, lookup, repository
from kubelet_trio.model import Offload, get_logger

if TYPE_CHECKING:
    from kubelet_trio.credentials.plugins import Plugin

log = get_logger()

# As upstream (CachingDockerConfigProvider in credentialprovider/provider.go).
_FILES_KEPT = 300.0  # seconds for which the node's files are not read again


class Keyring(Protocol):
    """Returns the logins for an image."""

    async def logins(self, image: str, own: Iterable[Logins], puller: Puller) -> Sequence[Login]:
        """Return the logins to try in turn; none: pull anonymously.

        `own` are those of the pod's secrets, which come first; `puller` is the pod.
        """
        ...


class NodeKeyring:
    """The keyring of a node. A source that fails is logged; the others are used."""

    def __init__(self, root_dir: Path, offload: Offload, plugins: Sequence[Plugin] = ()) -> None:
        self._root_dir = root_dir
        self._offload = offload
        self._plugins = plugins
        self._files: Logins = {}
        self._read_again_at = float("-inf")

    async def logins(self, image: str, own: Iterable[Logins], puller: Puller) -> Sequence[Login]:
        name = repository(image)
        plugins = [await self._of_plugin(plugin, name, puller) for plugin in self._plugins]
        return lookup([list(own), [await self._of_files()], plugins], name)

    async def _of_files(self) -> Logins:
        if trio.current_time() >= self._read_again_at:
            self._files = await self._offload(node_logins, self._root_dir, home_directory())
            self._read_again_at = trio.current_time() + _FILES_KEPT
        return self._files

    async def _of_plugin(self, plugin: Plugin, name: str, puller: Puller) -> Logins:
        try:
            return await plugin.logins(name, puller)
        except ProviderError as exc:
            log.error("credentials.provider_failed", image=name, error=str(exc))
            return {}


class NoKeyring:
    """A keyring with only the pod's own logins."""

    async def logins(self, image: str, own: Iterable[Logins], puller: Puller) -> Sequence[Login]:
        return lookup([list(own)], repository(image))
