"""The service on which device plugins register: v1beta1.Registration. Loaded with the first call.

Source: pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go.
"""

from __future__ import annotations

from pathlib import Path

from kubelet_trio.grpc import GRPCError, Server, ServerLimits, Status
from kubelet_trio.managers.devices.directory import plugin_socket
from kubelet_trio.managers.devices.generated.v1beta1 import Empty, RegisterRequest
from kubelet_trio.managers.devices.generated.v1beta1.server import RegistrationBase
from kubelet_trio.managers.devices.plugins import VERSION, DevicePlugins, invalid_name
from kubelet_trio.managers.devices.requests import is_extended_name
from kubelet_trio.managers.shares import DevicePluginError
from kubelet_trio.model import get_logger

log = get_logger()

# Upstream has none. At the start of an agent all plugins of the node register at one time, each by
# a connection of its own; a call takes up to 20 s: the plugin is dialed, and asked for its options.
LIMITS = ServerLimits(
    connections=64,
    streams=8,
    stream_window=1 << 16,
    queued_bytes=1 << 20,
    request_bytes=1 << 12,  # an ordinary one has a hundred
    calls=64,
    call_seconds=30.0,
    qps=50,
    burst=100,
)
_MOST_SHOWN = 200  # characters of a version


class RegistrationService(RegistrationBase):
    """Registers plugins. Refusals have upstream's status, UNKNOWN, and texts."""

    def __init__(self, plugins: DevicePlugins, directory: Path) -> None:
        """`directory` has the sockets of the plugins."""
        self._plugins = plugins
        self._directory = directory

    async def register(self, request: RegisterRequest) -> Empty:
        """Register a plugin; answer once the agent has connected to it."""
        resource, version = request.resource_name, request.version
        try:
            if version != VERSION:
                raise ValueError(
                    f'requested API version "{version[:_MOST_SHOWN]}" is not supported by '
                    f'kubelet. Supported version is ["{VERSION}"]'
                )
            if not is_extended_name(resource):
                raise ValueError(invalid_name(resource))
            self._plugins.count_registration(resource)
            await self._plugins.register(resource, plugin_socket(self._directory, request.endpoint))
        except (ValueError, DevicePluginError) as exc:
            log.warning("device.plugin_refused", resource=resource[:_MOST_SHOWN], error=str(exc))
            raise GRPCError(Status.UNKNOWN, str(exc)) from exc
        return Empty()


def registration_server(plugins: DevicePlugins, directory: Path) -> Server:
    """Return the server of the agent's socket."""
    return Server([RegistrationService(plugins, directory)], limits=LIMITS)
