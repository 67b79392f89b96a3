"""A DRA driver that keeps the rules, with faults. It has no transport: a server calls it.

`tests/harness/dra_services.py` and `dra_grpcio.py` serve it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import Device, ResourcePool, ResourceSlice, ResourceSliceSpec

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.dra import calls
from kubelet_trio.testing.dra.calls import AskedClaim, DraCall, FakeClaimDevice, FakeDeviceHealth
from kubelet_trio.testing.dra.cdi import CdiEdits, remove_cdi_spec, write_cdi_spec
from kubelet_trio.testing.dra.faults import DraFault, DraFaultKind, DraFaults
from kubelet_trio.testing.dra.rules import DraRules

DRIVER = "dra.example.com"
OTHER_UID = "nobody-asked-for-me"
HUGE_BYTES = 17 << 20  # more than the 16 MiB that a kubelet takes for a message
GRANTED = "FAKE_CLAIM_DEVICES"  # the variable in which containers see their devices

Choose = Callable[[AskedClaim], Sequence[FakeClaimDevice]]


class FakeDraDriver:
    """One instance of a driver. After a death, `run` again: it is a new process.

    Attributes:
        name: of the driver.
        instance: tells the instances of a driver apart, in the names of their sockets; "": the
            driver has only this one.
        services: the gRPC services that it announces, and serves.
        rules: what the kubelet must keep. Instances of one driver share them.
        faults: what goes wrong.
        registrations: what the kubelet answered to registrations: "" for OK, else its error.
    """

    def __init__(
        self,
        name: str = DRIVER,
        devices: Iterable[str] = ("dev-0",),
        rules: DraRules | None = None,
        *,
        instance: str = "",
        pool: str = "node",
        services: Sequence[str] = (calls.V1,),
        choose: Choose | None = None,
        cdi_dir: Path | None = None,
        nodes: Mapping[str, str] | None = None,
        die: Callable[[], None] | None = None,
    ) -> None:
        """Create an instance.

        Args:
            name: of the driver.
            devices: the names of its devices.
            rules: of the driver, if it has an instance already.
            instance: see above.
            pool: of its devices.
            services: those of DRAPlugin and DRAResourceHealth, as the driver announces them.
            choose: the devices of a claim, which real drivers read from the claim's status; None:
                what `allocate` has said, else the first device.
            cdi_dir: where CDI specifications go; None: none are written.
            nodes: device nodes by their path in containers, for these.
            die: ends the process for DIE_BEFORE and DIE_AFTER; None: `run` returns.
        """
        self.name, self.instance, self.pool = name, instance, pool
        self.devices, self.services = tuple(devices), tuple(services)
        self.rules = rules or DraRules()
        self.faults = DraFaults()
        self.registrations: list[str] = []
        self._choose = choose or self._chosen
        self._allocated: dict[str, tuple[FakeClaimDevice, ...]] = {}
        self._cdi_dir, self._nodes = cdi_dir, nodes or {}
        self._die = die or self._stop
        self._life: trio.CancelScope | None = None
        self._healths: tuple[FakeDeviceHealth, ...] = ()
        self._list = 2  # the number of the newest list of healths
        self._ended = 0  # streams whose last list is up to this one have ended
        self._changed = trio.Event()

    # What a test does

    def allocate(self, uid: str, *devices: FakeClaimDevice | str) -> None:
        """Prepare these devices for a claim."""
        self._allocated[uid] = tuple(
            FakeClaimDevice(d) if isinstance(d, str) else d for d in devices
        )

    def set_health(self, *healths: FakeDeviceHealth) -> None:
        """Report these healths, all at once, to current and future streams."""
        self._healths = healths
        self._list += 1
        self._change()

    def end_streams(self) -> None:
        """End the streams of NodeWatchResources."""
        self._ended = self._list
        self._list += 2  # so that a new stream, which begins after the one between, has a list
        self._change()

    async def wait_until(self, check: Callable[[DraRules], object]) -> None:
        """Wait until a check of the rules holds; it runs at each call and each registration."""
        while not check(self.rules):
            await self._changed.wait()

    async def wait_registered(self, times: int = 1) -> None:
        """Wait until the kubelet has taken that many registrations."""
        await self.wait_until(lambda _rules: self.registrations.count("") >= times)

    def cdi_name(self, uid: str, device: str) -> str:
        """Return the name of a device in the CDI specification of a claim."""
        return f"{uid}-{device}"

    # What a server does

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled, or until a fault kills the instance."""
        with trio.CancelScope() as self._life:
            task_status.started()
            await trio.sleep_forever()

    def note_registration(self, error: str) -> None:
        """Take the kubelet's answer to a registration; "": it took it."""
        self.registrations.append(error)
        self._change()

    async def prepare(self, call: DraCall) -> dict[str, tuple[FakeClaimDevice, ...] | str]:
        """Serve NodePrepareResources: devices, or an error, by UID. Raises `GRPCError`."""
        async with self._served(call) as fault:
            done, answer = _affected(call, fault)
            found: dict[str, tuple[FakeClaimDevice, ...] | str] = {**answer}
            for claim in done:
                found[claim.uid] = self._prepared(claim)
            if fault is not None and fault.kind is DraFaultKind.HUGE:
                found[call.uids[0]] = (FakeClaimDevice("x" * HUGE_BYTES, self.pool, cdi_ids=()),)
            elif fault is not None and fault.kind is DraFaultKind.OTHER_UID:
                found[OTHER_UID] = ()
            return found

    async def unprepare(self, call: DraCall) -> dict[str, str]:
        """Serve NodeUnprepareResources: an error or "", by UID. Raises `GRPCError`."""
        async with self._served(call) as fault:
            done, found = _affected(call, fault)
            for claim in done:
                found[claim.uid] = ""
                if self._cdi_dir is not None:
                    remove_cdi_spec(self._cdi_dir, f"{self.name}-{claim.uid}")
            if fault is not None and fault.kind is DraFaultKind.HUGE:
                found[call.uids[0]] = "x" * HUGE_BYTES
            elif fault is not None and fault.kind is DraFaultKind.OTHER_UID:
                found[OTHER_UID] = ""
            return found

    async def begin_watch(self, service: str) -> int:
        """Begin a stream of NodeWatchResources; returns what `next_health` wants.

        Raises `GRPCError`: the end of the stream.
        """
        self._end_if_dead()
        call = DraCall(calls.WATCH, service)
        fault = self.faults.take(call)
        self.rules.begin(call)
        self._change()
        await self._before(fault)
        if fault is not None and fault.kind is DraFaultKind.HUGE:
            self.set_health(FakeDeviceHealth("x" * HUGE_BYTES))
        return -1 if fault is not None and fault.kind is DraFaultKind.LEAVE_OUT else self._ended + 1

    async def next_health(self, seen: int) -> tuple[int, tuple[FakeDeviceHealth, ...]] | None:
        """Return the next list of a stream and its number; None: the stream ends.

        Args:
            seen: the number of the list before, or what `begin_watch` returned.
        """
        while True:
            if seen <= self._ended:
                return None
            if self._list > seen:
                return self._list, tuple(
                    replace(health, pool=health.pool or self.pool) for health in self._healths
                )
            await self._changed.wait()

    @asynccontextmanager
    async def _served(self, call: DraCall) -> AsyncIterator[DraFault | None]:
        """Serve a call around what makes its answer; yield the fault that hits it."""
        self._end_if_dead()
        fault = self.faults.take(call)
        if fault is not None and fault.kind is DraFaultKind.REFUSE:
            raise GRPCError(fault.status, fault.message)
        self._change()
        self.rules.begin(call)
        try:
            self._change()
            await self._before(fault)
            yield fault
            self.rules.effect(call, _affected(call, fault)[0])
        finally:
            self.rules.end(call)
            self._change()
        if fault is not None and fault.kind is DraFaultKind.DIE_AFTER:
            await self._end()

    async def _before(self, fault: DraFault | None) -> None:
        if fault is None:
            return
        if fault.kind is DraFaultKind.REFUSE:
            raise GRPCError(fault.status, fault.message)
        if fault.kind is DraFaultKind.HANG:
            await fault.lifted.wait()
        elif fault.kind is DraFaultKind.SLOW:
            await trio.sleep(fault.delay)
        elif fault.kind is DraFaultKind.DIE_BEFORE:
            await self._end()

    def _prepared(self, claim: AskedClaim) -> tuple[FakeClaimDevice, ...]:
        """Return the devices of a claim, the same each time, with their specification written."""
        chosen = self._choose(claim)
        if self._cdi_dir is not None:
            edits = {
                self.cdi_name(claim.uid, d.name): CdiEdits({GRANTED: d.name}, self._nodes)
                for d in chosen
            }
            kind = f"{self.name}/claim"
            write_cdi_spec(self._cdi_dir, f"{self.name}-{claim.uid}", kind, edits)
        return tuple(self._complete(claim, device) for device in chosen)

    def _complete(self, claim: AskedClaim, device: FakeClaimDevice) -> FakeClaimDevice:
        cdi_ids = device.cdi_ids
        if cdi_ids is None:
            cdi_ids = (f"{self.name}/claim={self.cdi_name(claim.uid, device.name)}",)
        return replace(device, pool=device.pool or self.pool, cdi_ids=cdi_ids)

    def _chosen(self, claim: AskedClaim) -> Sequence[FakeClaimDevice]:
        first = tuple(FakeClaimDevice(name) for name in self.devices[:1])
        return self._allocated.get(claim.uid, first)

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
            raise GRPCError(Status.UNAVAILABLE, "the driver has ended")

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def resource_slice(driver: FakeDraDriver, node: str) -> ResourceSlice:
    """Return the ResourceSlice with which a driver offers its devices on a node."""
    return ResourceSlice(
        metadata=ObjectMeta(name=f"{node}-{driver.name}"),
        spec=ResourceSliceSpec(
            driver=driver.name,
            nodeName=node,
            pool=ResourcePool(name=driver.pool, generation=1, resourceSliceCount=1),
            devices=[Device(name=name) for name in driver.devices],
        ),
    )


def _affected(
    call: DraCall, fault: DraFault | None
) -> tuple[tuple[AskedClaim, ...], dict[str, str]]:
    """Return the claims for which a call takes effect, and errors for others, by UID."""
    kinds = (DraFaultKind.CLAIM_ERROR, DraFaultKind.LEAVE_OUT)
    if fault is None or fault.kind not in kinds:
        return call.claims, {}
    spared = tuple(c for c in call.claims if fault.claim and c.uid != fault.claim)
    if fault.kind is DraFaultKind.LEAVE_OUT:
        return spared, {}
    return spared, {c.uid: fault.message for c in call.claims if c not in spared}
