"""A device plugin that keeps the rules, with faults. It has no transport: a server calls it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import trio

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.devices import calls
from kubelet_trio.testing.devices.calls import (
    AskedDevices,
    DeviceCall,
    DeviceGrant,
    FakeDevice,
    fake_devices,
)
from kubelet_trio.testing.devices.faults import DeviceFault, DeviceFaultKind, DeviceFaults
from kubelet_trio.testing.devices.rules import DeviceRules

HUGE_BYTES = 17 << 20  # more than the 16 MiB that a kubelet takes for a message
RESOURCE = "example.org/device"
_NEVER = -1  # before all lists
GRANTED = "FAKE_DEVICES"  # the variable in which containers see their devices


def name_devices(ids: Sequence[str]) -> DeviceGrant:
    """Grant an environment variable that names the devices."""
    return DeviceGrant(environment={GRANTED: ",".join(sorted(ids))})


def first_available(asked: AskedDevices) -> tuple[str, ...]:
    """Prefer what must be included, then the first ones by their names."""
    rest = sorted(set(asked.available) - set(asked.must_include))
    return (*asked.must_include, *rest)[: asked.size]


class FakeDevicePlugin:
    """A plugin for one resource. After a death, `run` again: it is a new process.

    Attributes:
        resource: the name of its resource; as `versions` it may be changed before a registration.
        rules: what the kubelet must keep. A new life of the plugin continues with them.
        faults: what goes wrong.
        registrations: what the kubelet answered to registrations: "" for OK, else its error.
    """

    def __init__(
        self,
        resource: str = RESOURCE,
        devices: Iterable[FakeDevice | str] = (),
        rules: DeviceRules | None = None,
        *,
        grant: Callable[[Sequence[str]], DeviceGrant] = name_devices,
        prefer: Callable[[AskedDevices], Sequence[str]] = first_available,
        versions: Sequence[str] = (calls.VERSION,),
        latency: float = 0.0,
        save: Callable[[DeviceRules], None] = lambda _rules: None,
        die: Callable[[], None] | None = None,
    ) -> None:
        """Create a plugin.

        Args:
            resource: an extended resource's name.
            devices: what it lists first; a plain ID is a healthy device.
            rules: the options that it has, and what the kubelet must keep.
            grant: what a container gets with some devices.
            prefer: the devices that it prefers for a container; asked only with `rules.prefers`.
            versions: of the API, as it registers them; at a kubelet's socket the first one.
            latency: seconds of each call but ListAndWatch, half of them before its effect.
            save: called after each effect, to keep `rules` beyond the process.
            die: ends the process for DIE_BEFORE and DIE_AFTER; None: `run` returns.
        """
        self.resource, self.versions = resource, tuple(versions)
        self.rules = rules or DeviceRules()
        self.faults = DeviceFaults()
        self.registrations: list[str] = []
        self.latency = latency
        self._devices = fake_devices(devices)
        self._grant, self._prefer, self._save = grant, prefer, save
        self._die = die or self._stop
        self._life: trio.CancelScope | None = None
        self._list = 1  # the number of the newest list
        self._ended = _NEVER  # streams whose last list is up to this one have ended
        self._changed = trio.Event()

    # What a test does

    @property
    def devices(self) -> tuple[FakeDevice, ...]:
        return self._devices

    def set_devices(self, devices: Iterable[FakeDevice | str]) -> None:
        """List other devices from now on."""
        self._devices = fake_devices(devices)
        self._list += 1
        self._change()

    def set_health(self, *devices: str, is_healthy: bool) -> None:
        """Change the health of some devices."""
        self.set_devices(
            FakeDevice(d.id, is_healthy, d.nodes) if d.id in devices else d for d in self._devices
        )

    def end_streams(self) -> None:
        """End the streams of ListAndWatch, as a plugin does that gives up."""
        self._ended = self._list
        self._list += 2  # so that the number before it, where a stream begins, is no ended one
        self._change()

    async def wait_until(self, check: Callable[[DeviceRules], object]) -> None:
        """Wait until a check of the rules holds; it runs at each call and each registration."""
        while not check(self.rules):
            await self._changed.wait()

    async def wait_registered(self, times: int = 1) -> None:
        """Wait until the kubelet has taken that many registrations."""
        await self.wait_until(lambda _rules: self.registrations.count("") >= times)

    # What a server does

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled, or until a fault kills the plugin."""
        with trio.CancelScope() as self._life:
            task_status.started()
            await trio.sleep_forever()

    def note_registration(self, error: str) -> None:
        """Take the kubelet's answer to a registration; "": it took it."""
        self.registrations.append(error)
        self._change()

    async def options(self) -> DeviceRules:
        """Serve GetDevicePluginOptions: `prefers` and `needs_pre_start`. Raises `GRPCError`."""
        async with self._served(DeviceCall(calls.OPTIONS)):
            return self.rules

    async def begin_watch(self) -> int:
        """Begin a stream of ListAndWatch; returns what `next_list` wants.

        Raises `GRPCError`: the end of the stream.
        """
        self._end_if_dead()
        call = DeviceCall(calls.WATCH)
        fault = self.faults.take(call)
        self.rules.take(call, trio.current_time())
        self._change()
        await self._before(fault)
        if fault is not None and fault.kind is DeviceFaultKind.HUGE:
            self.set_devices([FakeDevice("x" * HUGE_BYTES)])
        elif fault is not None and fault.kind is DeviceFaultKind.MORE_ANSWERS:
            self.set_devices(self._devices * 2)
        elif fault is not None and fault.kind is DeviceFaultKind.NO_ANSWERS:
            return _NEVER
        return self._list - 1

    async def next_list(self, seen: int) -> tuple[int, tuple[FakeDevice, ...]] | None:
        """Return the next list of a stream and its number; None: the stream ends.

        Args:
            seen: the number of the list before, or what `begin_watch` returned.
        """
        while True:
            if seen <= self._ended:
                return None
            if self._list > seen:
                self.rules.note_list(self._devices, trio.current_time())
                return self._list, self._devices
            await self._changed.wait()

    async def prefer(self, call: DeviceCall) -> list[tuple[str, ...]]:
        """Serve GetPreferredAllocation: devices by container. Raises `GRPCError`: the answer."""
        async with self._served(call) as fault:
            preferred = [tuple(self._prefer(asked)) for asked in call.containers]
            if fault is DeviceFaultKind.NO_ANSWERS:
                return []
            if fault is DeviceFaultKind.HUGE:
                return [("x" * HUGE_BYTES,)]
            if fault is DeviceFaultKind.MORE_ANSWERS:
                return [*preferred, ("one-too-many",)]
            if fault is DeviceFaultKind.OTHER_IDS:
                return [tuple(f"not-{device}" for device in ids) for ids in preferred]
            if fault is DeviceFaultKind.FEWER_IDS:
                return [ids[:-1] for ids in preferred]
            return preferred

    async def allocate(self, call: DeviceCall) -> list[DeviceGrant]:
        """Serve Allocate: grants by container. Raises `GRPCError`: the answer."""
        async with self._served(call) as fault:
            granted = [self._grant(asked.ids) for asked in call.containers]
            if fault is DeviceFaultKind.NO_ANSWERS:
                return []
            if fault is DeviceFaultKind.HUGE:
                return [DeviceGrant(annotations={"huge": "x" * HUGE_BYTES})]
            if fault is DeviceFaultKind.MORE_ANSWERS:
                return [*granted, DeviceGrant(environment={"ONE_TOO_MANY": "true"})]
            return granted

    async def pre_start(self, call: DeviceCall) -> None:
        """Serve PreStartContainer. Raises `GRPCError`: the answer."""
        async with self._served(call):
            pass

    @asynccontextmanager
    async def _served(self, call: DeviceCall) -> AsyncIterator[DeviceFaultKind | None]:
        """Serve a call around what makes its answer; yield the fault that hits it."""
        self._end_if_dead()
        fault = self.faults.take(call)
        if fault is not None and fault.kind is DeviceFaultKind.REFUSE:
            raise GRPCError(fault.status, fault.message)
        try:
            self.rules.take(call, trio.current_time())
        finally:
            self._save(self.rules)
            self._change()
        await trio.sleep(self.latency / 2)
        await self._before(fault)
        yield fault.kind if fault is not None else None
        self.rules.answer(call)
        self._save(self.rules)
        self._change()
        await trio.sleep(self.latency / 2)
        if fault is not None and fault.kind is DeviceFaultKind.DIE_AFTER:
            await self._end()

    async def _before(self, fault: DeviceFault | None) -> None:
        if fault is None:
            return
        if fault.kind is DeviceFaultKind.REFUSE:
            raise GRPCError(fault.status, fault.message)
        if fault.kind is DeviceFaultKind.HANG:
            await fault.lifted.wait()
        elif fault.kind is DeviceFaultKind.SLOW:
            await trio.sleep(fault.delay)
        elif fault.kind is DeviceFaultKind.DIE_BEFORE:
            await self._end()

    async def _end(self) -> None:
        """Die as the process would in the middle of a call: no answer, no clean-up."""
        self._die()
        await trio.sleep_forever()

    def _stop(self) -> None:
        assert self._life is not None
        self._life.cancel()

    def _end_if_dead(self) -> None:
        # A call of a connection that ends with this life.
        if self._life is not None and self._life.cancel_called:
            raise GRPCError(Status.UNAVAILABLE, "the plugin has ended")

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
