"""A CSI driver that keeps the rules, with faults. It has no transport: a server hands it calls.

What the driver does on the node is its `CsiStorage`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.csi import calls
from kubelet_trio.testing.csi.calls import CsiCall
from kubelet_trio.testing.csi.faults import CsiFault, CsiFaultKind, CsiFaults
from kubelet_trio.testing.csi.rules import CsiOperation, CsiRules
from kubelet_trio.testing.csi.storage import CsiStorage, FakeStorage

_NEWS_WITHIN = 1.0  # seconds


@dataclass(slots=True)
class CsiDriverFacts:
    """What a driver says about itself. A test may change it at any time."""

    name: str = "fake.csi.example.org"
    node_id: str = "node-1"
    max_volumes: int = 0
    topology: Mapping[str, str] = field(default_factory=dict)
    endpoint: str = ""  # given at registration; "": the socket of the registration
    versions: tuple[str, ...] = ("1.0.0",)
    plugin_type: str = "CSIPlugin"


@dataclass(eq=False, slots=True)
class _Kept:
    """A call that takes effect even if its caller gives up."""

    call: CsiCall
    fault: CsiFault
    done: trio.Event = field(default_factory=trio.Event)
    operation: CsiOperation | None = None
    answer: Any = None
    refusal: GRPCError | None = None


class FakeCsiDriver:
    """A driver. After a death, `run` again: it continues with what it has mounted."""

    def __init__(
        self,
        rules: CsiRules | None = None,
        storage: CsiStorage | None = None,
        facts: CsiDriverFacts | None = None,
        *,
        latency: float = 0.0,
        save: Callable[[CsiRules], None] = lambda _rules: None,
        die: Callable[[], None] | None = None,
    ) -> None:
        """Create a driver.

        Args:
            rules: the state that callers must respect.
            storage: mounts; None: in memory.
            facts: its name, and what NodeGetInfo answers.
            latency: seconds of each call, half of them before its effect.
            save: called before and after each effect, to keep `rules` beyond the process.
            die: ends the process for DIE_BEFORE and DIE_AFTER; None: `run` returns.
        """
        self.rules = rules or CsiRules()
        self.storage: CsiStorage = storage or FakeStorage()
        self.facts = facts or CsiDriverFacts()
        self.faults = CsiFaults()
        self.registrations: list[str] = []  # "" for OK, else the agent's error
        self.registered = trio.Event()
        self.latency = latency
        self._save = save
        self._die = die or self._stop
        self._life: trio.CancelScope | None = None
        self._changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Finish the calls whose caller gave up, until cancelled or until a fault kills it."""
        self._send, receive = trio.open_memory_channel[_Kept](float("inf"))
        with trio.CancelScope() as self._life:
            async with trio.open_nursery() as nursery:
                task_status.started()
                async for kept in receive:
                    nursery.start_soon(self._finish, kept)

    async def serve(self, call: CsiCall) -> Any:
        """Serve a call for a volume.

        Returns a `StorageUsage` for NodeGetVolumeStats, and the new size for NodeExpandVolume.
        Raises `GRPCError`: the answer.
        """
        fault = self.faults.take(call)
        if fault is None or fault.kind is not CsiFaultKind.GOES_ON:
            return await self._serve(call, fault, None)
        kept = _Kept(call, fault)
        self._send.send_nowait(kept)
        try:
            await kept.done.wait()
        except trio.Cancelled:
            if kept.operation is not None:
                kept.operation.abandon()
                self._change()
            raise
        if kept.refusal is not None:
            raise kept.refusal
        return kept.answer

    async def serve_facts(self, method: str) -> CsiDriverFacts:
        """Serve a call that is for no volume. Raises `GRPCError`: the answer."""
        fault = self.faults.take(CsiCall(method))
        if fault is not None and fault.kind is CsiFaultKind.REFUSE:
            raise GRPCError(fault.status, fault.message)
        await self._before(fault)
        await self._after(fault)
        return self.facts

    def note_registration(self, *, is_registered: bool, error: str) -> None:
        """Take the agent's answer to the registration."""
        self.registrations.append("" if is_registered else error)
        if is_registered:
            self.registered.set()

    async def wait_until(self, check: Callable[[CsiRules], object]) -> None:
        """Wait until a check of the rules holds; it runs at each change of a call's progress."""
        while not check(self.rules):
            await self._changed.wait()

    async def _finish(self, kept: _Kept) -> None:
        try:
            kept.answer = await self._serve(kept.call, kept.fault, kept)
        except GRPCError as exc:
            kept.refusal = exc
        kept.done.set()

    async def _serve(self, call: CsiCall, fault: CsiFault | None, kept: _Kept | None) -> Any:
        if fault is not None and fault.kind is CsiFaultKind.REFUSE:
            raise GRPCError(fault.status, fault.message)
        answer = None
        overlapped = await self._notice_left(call)
        try:
            with self.rules.operation(call, overlapped) as operation:
                self._change()
                if kept is not None:
                    kept.operation = operation
                await self._before(fault)
                if operation.is_needed:
                    answer = await self._act(call, operation)
                await self._after(fault)
        finally:
            self._save(self.rules)
            self._change()
        return answer

    async def _notice_left(self, call: CsiCall) -> CsiOperation | None:
        """Return the call that is in progress for the same volume.

        Its caller may have given up already: nothing orders that news and a call on another
        connection, or in another thread of the server. So it is given time to arrive.
        """
        pending = self.rules.pending_of(call)
        with trio.move_on_after(_NEWS_WITHIN):
            while pending is not None and not pending.is_abandoned:
                await self._changed.wait()
                if self.rules.pending_of(call) is not pending:
                    break
        return pending

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _act(self, call: CsiCall, operation: CsiOperation) -> Any:
        try:
            with operation.effect():
                self._save(self.rules)
                return await self._watched_effect(call, operation)
        finally:
            self._save(self.rules)

    async def _watched_effect(self, call: CsiCall, operation: CsiOperation) -> Any:
        """Have the effect of a call; note a cancellation while a thread goes on with it."""
        answer, failure = None, None
        async with trio.open_nursery() as watch:
            watch.start_soon(self._note_abandoned, operation, watch.cancel_scope)
            try:
                answer = await self._effect(call)
            except GRPCError as exc:  # raised below: a nursery would wrap it in a group
                failure = exc
            except OSError as exc:
                failure = GRPCError(Status.INTERNAL, str(exc))
            watch.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return answer

    async def _note_abandoned(self, operation: CsiOperation, watch: trio.CancelScope) -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not watch.cancel_called:  # the caller's cancellation, and not the end of the effect
                operation.abandon()
                self._change()

    async def _effect(self, call: CsiCall) -> Any:
        storage = self.storage
        by_method: dict[str, Callable[[CsiCall], Awaitable[Any]]] = {
            calls.STAGE: storage.stage,
            calls.UNSTAGE: storage.unstage,
            calls.PUBLISH: storage.publish,
            calls.UNPUBLISH: storage.unpublish,
            calls.STATS: storage.usage,
            calls.EXPAND: storage.expand,
        }
        return await by_method[call.method](call)

    async def _before(self, fault: CsiFault | None) -> None:
        await trio.sleep(self.latency / 2)
        if fault is None:
            return
        if fault.kind is CsiFaultKind.HANG:
            await fault.lifted.wait()
        elif fault.kind is CsiFaultKind.DIE_BEFORE:
            await self._end()
        elif fault.kind is not CsiFaultKind.LOST_REPLY:
            await trio.sleep(fault.delay)
        if fault.kind is CsiFaultKind.ERROR:
            raise GRPCError(fault.status, fault.message)

    async def _after(self, fault: CsiFault | None) -> None:
        await trio.sleep(self.latency / 2)
        if fault is None:
            return
        if fault.kind is CsiFaultKind.DIE_AFTER:
            await self._end()
        if fault.kind is CsiFaultKind.LOST_REPLY:
            await trio.sleep(fault.delay)
            raise GRPCError(fault.status, fault.message)

    async def _end(self) -> None:
        """Die as the process would in the middle of a call: no answer, no clean-up."""
        self._die()
        await trio.sleep_forever()

    def _stop(self) -> None:
        assert self._life is not None
        self._life.cancel()
