"""The agent's socket for device plugins, `device-plugins/kubelet.sock`: what is served on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import trio

from kubelet_trio.managers.devices.directory import SOCKET, clear_directory
from kubelet_trio.managers.devices.plugins import DevicePlugins
from kubelet_trio.model import Offload

if TYPE_CHECKING:
    from kubelet_trio.grpc import Server


class RegistrationSocket:
    """Serves `v1beta1.Registration`; whoever opens the socket calls it for each connection."""

    def __init__(self, plugins: DevicePlugins, directory: Path, offload: Offload) -> None:
        """`directory` has the sockets; `offload` runs blocking file access."""
        self.path = directory / SOCKET
        self._plugins = plugins
        self._directory = directory
        self._offload = offload
        self._is_clear = False
        self._server: Server | None = None

    async def prepare(self) -> None:
        """Make the directory; the first time, remove the sockets in it. Raises OSError.

        Plugins that see their socket go register again. Once is enough: those that have registered
        with this agent go on when only its server is restarted.
        """
        if not self._is_clear:
            await self._offload(clear_directory, self._directory)
            self._is_clear = True

    async def serve(self, connection: trio.abc.Stream) -> None:
        """Serve one connection to its end."""
        if self._server is None:
            # gRPC and the messages are loaded with the first plugin: most nodes have none.
            from kubelet_trio.managers.devices.registration import registration_server

            self._server = registration_server(self._plugins, self._directory)
        await self._server.serve_stream(connection)
