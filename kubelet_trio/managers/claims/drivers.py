"""The DRA drivers that are registered on this node; the handler of plugins of type `DRAPlugin`.

A driver may have several instances, each with a socket of its own: during a rolling update the new
one registers before the old one ends. Each has a task, `run_plugin`, which owns the channel to it
and dials again whenever the connection ends, and a task that reads its devices' health. The
instance that has registered last and is connected is used. What may go wrong:

* An instance ends without removing its socket: it stays registered. Calls use another one that is
  connected, else they fail, until it is back.
* A driver has no connected instance for a while: whoever looks at `on_change` removes its
  ResourceSlices (`slices`).

Source: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio
from trio_util import AsyncValue

from kubelet_trio.managers.claims.health import DeviceName, HealthBook, Shown
from kubelet_trio.managers.claims.services import chosen_health, chosen_service
from kubelet_trio.managers.claims.types import ClaimDriver, ClaimError, DeviceHealths
from kubelet_trio.model import Meter, get_logger

if TYPE_CHECKING:
    from kubelet_trio.grpc import Channel

log = get_logger()

_CONNECT_TIMEOUT = 10.0  # s

Dial = Callable[[str], Awaitable[trio.abc.Stream]]
# With driver, pool and device, once the health of the device has changed.
OnHealth = Callable[[str, str, str], None]
# With a driver, and whether one of its instances is connected, whenever that may have changed.
OnChange = Callable[[str, bool], None]


@dataclass(eq=False, slots=True)
class _Instance:
    """A registered instance of a driver."""

    endpoint: str
    service: str
    calls: ClaimDriver
    connected: AsyncValue[bool]


def _nothing(*_arguments: object) -> None:
    pass


class DraDrivers:
    """The registered drivers; implements `ClaimDrivers` and `PluginHandler`."""

    is_exclusive = False  # a driver may have several instances
    errors: tuple[type[Exception], ...] = (ValueError,)  # of `run_plugin`

    def __init__(
        self,
        meter: Meter | None = None,
        *,
        dial: Dial = trio.open_unix_socket,
        on_health: OnHealth = _nothing,
        on_change: OnChange = _nothing,
        watches_health: bool = True,
    ) -> None:
        """Begin without drivers.

        Args:
            meter: measures the calls.
            dial: connects to an instance's socket.
            on_health: is called with a driver, a pool and a device whose health has changed.
            on_change: is called with a driver whose instances or connections have changed, and
                whether one of them is connected now.
            watches_health: the feature gate ResourceHealthStatus.
        """
        self._meter = meter or Meter()
        self._dial = dial
        self._on_health = on_health
        self._on_change = on_change
        self._watches_health = watches_health
        self._book = HealthBook()
        # Of each driver those that run, the last to register at the end.
        self._instances: dict[str, list[_Instance]] = {}

    @property
    def healths(self) -> DeviceHealths:
        """What the drivers say of their devices."""
        return self._book

    @property
    def registered(self) -> Mapping[str, bool]:
        """The registered drivers by name, and whether each has an instance that is connected."""
        return {name: self._is_usable(name) for name in sorted(self._instances)}

    def find(self, driver: str) -> ClaimDriver:
        """Return the instance of a driver to call. Raises `ClaimError` if it is not registered."""
        if not driver:
            raise ClaimError("DRA driver name is empty")
        instances = self._instances.get(driver)
        if not instances:
            raise ClaimError(f"DRA driver {driver} is not registered")
        connected = [instance for instance in instances if instance.connected.value]
        return (connected or instances)[-1].calls

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Check what a plugin says of itself. Raises ValueError in upstream's words."""
        try:
            chosen_service(versions)
        except ValueError as exc:
            raise ValueError(
                f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint "
                f"{endpoint}: {exc}"
            ) from exc

    async def run_plugin(
        self,
        name: str,
        endpoint: str,
        versions: Sequence[str],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep an instance registered until cancelled; ready at once, connected or not.

        Raises ValueError as `validate`, or if another instance of the driver has this endpoint.
        """
        # Not at the top: few nodes have drivers, and gRPC and the messages take memory.
        from kubelet_trio.grpc import Channel
        from kubelet_trio.managers.claims.driver import MOST_RECEIVED, DraPlugin
        from kubelet_trio.managers.claims.watch import HealthWatch

        self.validate(name, endpoint, versions)
        service = chosen_service(versions)
        if any(other.endpoint == endpoint for other in self._instances.get(name, ())):
            raise ValueError(f"endpoint {endpoint} already registered for DRA driver plugin {name}")
        channel = Channel(
            partial(self._dial, endpoint),
            max_message_bytes=MOST_RECEIVED,
            keep_connected=True,
            connect_timeout=_CONNECT_TIMEOUT,
        )
        calls = DraPlugin(name, service, channel, self._meter)
        mine = _Instance(endpoint, service, calls, channel.connected)
        self._instances.setdefault(name, []).append(mine)
        log.info("dra.driver_registered", driver=name, endpoint=endpoint, service=service)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(channel.run)
                nursery.start_soon(self._follow, name, channel)
                if self._watches_health:
                    told = partial(self._tell_health, name)
                    watch = HealthWatch(name, chosen_health(versions), channel, self._book, told)
                    nursery.start_soon(watch.run)
                task_status.started()
        finally:
            self._remove(name, mine)
            log.info("dra.driver_gone", driver=name, endpoint=endpoint)

    async def _follow(self, name: str, channel: Channel) -> None:
        """Report each change of a connection."""
        is_connected = channel.connected.value
        self._report(name)
        while True:
            await channel.connected.wait_value(not is_connected)
            is_connected = channel.connected.value
            self._report(name)

    def _remove(self, name: str, mine: _Instance) -> None:
        instances = self._instances[name]
        instances.remove(mine)
        if not instances:
            del self._instances[name]
        self._report(name)

    def _report(self, name: str) -> None:
        self._on_change(name, self._is_usable(name))

    def _is_usable(self, name: str) -> bool:
        return any(instance.connected.value for instance in self._instances.get(name, ()))

    def _tell_health(self, driver: str, changes: Mapping[DeviceName, Shown]) -> None:
        for name in changes:
            self._on_health(driver, name.pool, name.device)
