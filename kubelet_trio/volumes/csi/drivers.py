"""The CSI drivers that are registered on this node.

Each plugin of type `CSIPlugin` has a supervised task, `DriverTable.run_plugin`. It owns the channel
to the driver; the driver is registered while the task runs. Where two sockets have one name, both
tasks run until the registry has cancelled that of the older one. Until then the driver that has
registered last is used, and after that the one that is left.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import trio
from trio_util import AsyncValue

from kubelet_trio.grpc import Channel
from kubelet_trio.model import Backoff, Meter, get_logger
from kubelet_trio.volumes.csi.client import DriverClient
from kubelet_trio.volumes.csi.data import check_driver_name
from kubelet_trio.volumes.csi.types import CSI_TIMEOUT, CallNotes, Driver
from kubelet_trio.volumes.errors import CsiCallError, DriverNotFoundError

log = get_logger()

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")
_MAJOR = 1  # of CSI; HighestSupportedVersion in k8s.io/apimachinery/pkg/util/version
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 10.0  # seconds between attempts of NodeGetInfo

Version = tuple[int, int, int]
Install = Callable[[Driver], Awaitable[None]]


@dataclass(eq=False, slots=True)
class _Entry:
    """A registered driver, with its channel."""

    version: Version
    client: DriverClient
    channel: Channel


class DriverTable:
    """The registered drivers; the handler of plugins of type `CSIPlugin`."""

    is_exclusive = True  # of two sockets with one driver, the newer one is used
    errors: tuple[type[Exception], ...] = (ValueError, CsiCallError)  # of `run_plugin`

    def __init__(
        self,
        meter: Meter | None = None,
        drivers: AsyncValue[Mapping[str, Driver]] | None = None,
        connect: Callable[[str], Channel] = Channel,
        install: Install | None = None,
        notes: CallNotes | None = None,
    ) -> None:
        """Begin without drivers.

        Args:
            meter: measures the calls.
            drivers: will show the registered drivers.
            connect: makes the channel to a driver's socket.
            install: tells the API server of a driver; raises ValueError if that refuses the
                driver. None: there is no API server.
            notes: is told of the calls; None: nobody is.
        """
        self.drivers: AsyncValue[Mapping[str, Driver]] = drivers or AsyncValue({})
        self._meter = meter or Meter()
        self._connect = connect
        self._install = install
        self._notes = notes
        # Of each name those that run, the last to register at the end.
        self._entries: dict[str, list[_Entry]] = {}

    def client(self, name: str) -> DriverClient:
        """Return the calls of a registered driver. Raises `DriverNotFoundError`."""
        return self._entry(name).client

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Check what a plugin says about itself.

        Raises ValueError, with a text for the plugin: its name is none, it does not speak CSI 1.x,
        or a driver of that name speaks a higher version (validateVersions in
        pkg/volume/csi/csi_plugin.go).
        """
        try:
            check_driver_name(name)
            self._check_version(name, versions)
        except ValueError as exc:
            text = f"validation failed for CSI Driver {name} at endpoint {endpoint}: {exc}"
            raise ValueError(text) from exc

    async def run_plugin(
        self,
        name: str,
        endpoint: str,
        versions: Sequence[str],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep a driver registered until cancelled; ready once the driver has described itself.

        Args:
            name: of the driver.
            endpoint: the path of its socket.
            versions: those of CSI that it speaks.
            task_status: started once it is registered.

        Raises ValueError as `validate`, or if the API server refuses what the driver says about
        the node; and `CsiCallError` if the driver does not answer NodeGetInfo and
        NodeGetCapabilities within 2 min.
        """
        self.validate(name, endpoint, versions)
        channel = self._connect(endpoint)
        async with trio.open_nursery() as connection:
            await connection.start(channel.run)
            driver = await self._describe(name, endpoint, channel)
            if self._install is not None:
                await self._install(driver)
            entry = _Entry(
                _highest(versions), DriverClient(driver, channel, self._meter, self._notes), channel
            )
            self._entries.setdefault(name, []).append(entry)
            self._show()
            log.info("csi.driver_registered", driver=name, endpoint=endpoint)
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._entries[name].remove(entry)
                if not self._entries[name]:
                    del self._entries[name]
                self._show()
                log.info("csi.driver_gone", driver=name, endpoint=endpoint)

    async def refresh(self, name: str) -> None:
        """Ask a driver for its facts again, such as its limit of volumes.

        Raises `DriverNotFoundError` or `CsiCallError`.
        """
        entry = self._entry(name)
        driver = await _facts(entry.client)
        entry.client = DriverClient(driver, entry.channel, self._meter, self._notes)
        self._show()

    async def _describe(self, name: str, endpoint: str, channel: Channel) -> Driver:
        """Ask a new driver for its facts, again while it may still be starting."""
        client = DriverClient(Driver(name, endpoint, ""), channel, self._meter, self._notes)
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
        failure = CsiCallError("DeadlineExceeded", "context deadline exceeded", is_final=False)
        with trio.move_on_after(CSI_TIMEOUT):
            while True:
                try:
                    return await _facts(client)
                except CsiCallError as exc:
                    if exc.is_final:
                        raise
                    failure = exc
                await trio.sleep(backoff.next_delay())
        raise failure

    def _check_version(self, name: str, versions: Sequence[str]) -> None:
        if not versions:
            raise ValueError(
                f'CSI driver "{name}": plugin returned an empty list for supported versions'
            )
        highest, known = _highest(versions), self._entries.get(name)
        if known is not None and known[-1].version > highest:
            have = ".".join(map(str, known[-1].version))
            raise ValueError(
                f'CSI driver "{name}": another driver with the same name is already registered '
                f'with a higher supported version: "{have}"'
            )

    def _entry(self, name: str) -> _Entry:
        entries = self._entries.get(name)
        if entries is None:
            raise DriverNotFoundError(name)
        return entries[-1]

    def _show(self) -> None:
        known = sorted(self._entries.items())
        self.drivers.value = {name: entries[-1].client.driver for name, entries in known}


async def _facts(client: DriverClient) -> Driver:
    """Return what a driver says about itself. Raises `CsiCallError`."""
    info = await client.info()
    topology = info.accessible_topology
    return replace(
        client.driver,
        node_id=info.node_id,
        max_volumes=max(0, info.max_volumes_per_node),
        topology=dict(topology.segments) if topology is not None else {},
        capabilities=await client.capabilities(),
    )


def _highest(versions: Sequence[str]) -> Version:
    """Return the highest version of CSI 1.x in a list. Raises ValueError if there is none."""
    found = [_parse(version) for version in versions]
    usable = [version for version in found if version is not None and version[0] == _MAJOR]
    if not usable:
        text = ", ".join(version[:40] for version in versions[:10])
        raise ValueError(f"none of the versions specified [{text}] are supported")
    return max(usable)


def _parse(version: str) -> Version | None:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match is not None else None
