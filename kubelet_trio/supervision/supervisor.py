"""The supervisor of a fixed list of children.

One task, `run`, owns the children's records; no other task changes them. It is level-triggered:
in each round it handles the lives that have ended, starts the children that may start, and
waits for its bell (a life ended or is ready, a stop is requested) or for the end of a back-off.

A child may start when all before it have been ready once, are done, or have failed for
good. Children that were stopped for a restart wait in this order again.

Failures: if a child fails too often, `run` raises `GaveUpError` after the siblings were stopped.
If a child does not end when cancelled (because of a shield of its own), that is logged, its
siblings are still stopped, and it is not restarted before it has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import trio

from kubelet_trio.model import Bell, get_logger
from kubelet_trio.supervision.child import Child, ChildLife, ChildSpec, Component, subtree_of_life
from kubelet_trio.supervision.errors import GaveUpError
from kubelet_trio.supervision.policy import (
    DEFAULT_POLICY,
    Restart,
    RestartBudget,
    RestartPolicy,
    Strategy,
    restart_group,
)
from kubelet_trio.supervision.tree import ChildState, DeclaredNode, TreeNode

log = get_logger()

_PENDING = (ChildState.WAITING, ChildState.BACKOFF)


@dataclass(slots=True)
class _Slot(Child):
    """A child at its position in the start order."""

    budget: RestartBudget = field(default_factory=RestartBudget)
    due: float = -float("inf")  # trio time of its next start
    is_passed: bool = False  # the sibling after it may start

    def reset(self) -> None:
        """Reset it for another run of its supervisor; its counts stay."""
        self.budget = self.spec.policy.budget()
        self.rest = ChildState.WAITING
        self.due = -float("inf")
        self.is_passed = False

    def wait_again(self, due: float) -> None:
        """Make it pending again after its group was stopped."""
        # A temporary child is never restarted, so the sibling after it need not wait.
        if self.spec.restart is Restart.TEMPORARY and self.rest not in _PENDING:
            self.is_passed = True
            return
        # Also a transient child that was done runs again: its group may need its work anew.
        self.rest, self.due, self.is_passed = ChildState.WAITING, due, False


class Supervisor:
    """Starts its children in order, restarts those that fail, stops them in reverse.

    Args:
        name: Its name in the tree.
        children: In start order.
        strategy: Which siblings restart with a child that failed.
        policy: How often the supervisor above may restart this one. (A child's restarts are
            limited by its own policy.)
    """

    def __init__(
        self,
        name: str,
        children: Sequence[ChildSpec | Component],
        *,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        policy: RestartPolicy = DEFAULT_POLICY,
    ) -> None:
        self._name = name
        self._strategy = strategy
        self._policy = policy
        self._slots = [_slot_of(child) for child in children]
        names = [slot.spec.name for slot in self._slots]
        if len(set(names)) < len(names):
            raise ValueError(f"{name}: two children share a name: {names}")
        self._bell = Bell()
        self._stop_wanted = False
        self._path = name
        self._began: float | None = None

    @property
    def name(self) -> str:
        return self._name

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the children until `stop` is called; ready when each child was ready once.

        Raises:
            GaveUpError: a child failed more often than its policy allows.
        """
        if self._began is not None:
            raise RuntimeError(f"{self._path}: runs already")
        gave_up: GaveUpError | None = None
        with subtree_of_life(self) as self._path, self._running():
            async with trio.open_nursery() as lives:
                try:
                    gave_up = await self._oversee(lives, task_status)
                    if gave_up is None:
                        await self._stop_in_reverse(self._slots, ask=True)
                finally:
                    # After a cancellation from above the lives still run, behind their shields.
                    # Each wait within is bounded by its child's grace, and all of them here.
                    with trio.move_on_after(self._stop_bound, shield=True):
                        await self._stop_in_reverse(self._slots, ask=False)
        # Raised here: the nursery would wrap it in a group.
        if gave_up is not None:
            raise gave_up

    def stop(self) -> None:
        """Ask the children to finish, the last one first; `run` returns when all have ended.

        Never blocks. After a call before `run`, the next `run` starts nothing.
        """
        self._stop_wanted = True
        self._bell.ring()

    def tree(self) -> TreeNode:
        """Return a snapshot of this supervisor and everything below it. Inside `trio.run` only."""
        state, age = ChildState.STOPPED, 0.0
        if self._began is not None:
            age = trio.current_time() - self._began
            is_ready = all(slot.is_passed for slot in self._slots)
            state = ChildState.RUNNING if is_ready else ChildState.STARTING
            state = ChildState.STOPPING if self._stop_wanted else state
        children = tuple(slot.node() for slot in self._slots)
        return TreeNode(self._name, state, age=age, children=children)

    def declared(self) -> DeclaredNode:
        """Return the declared tree of this supervisor."""
        children = (
            DeclaredNode(slot.spec.name) if slot.component is None else slot.component.declared()
            for slot in self._slots
        )
        return DeclaredNode(self._name, self._strategy.value, tuple(children))

    def as_spec(self) -> ChildSpec:
        """Return this supervisor as a child; transient, because it returns after `stop`."""
        return ChildSpec(
            self._name,
            self.run,
            Restart.TRANSIENT,
            self._policy,
            stop=self.stop,
            stop_grace=self._stop_bound,
        )

    @property
    def _stop_bound(self) -> float:
        # 1 s is for the steps of its own task, also without children.
        return 1.0 + sum(slot.spec.stop_bound for slot in self._slots)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Reset the records for this run, and close them after it."""
        self._began = trio.current_time()
        for slot in self._slots:
            slot.reset()
        try:
            yield
        finally:
            self._began = None
            self._stop_wanted = False
            for slot in self._slots:
                # It outlasted its grace, but the nursery has waited for it.
                if slot.life is not None:
                    slot.note_stopped(slot.life)
                if slot.rest in _PENDING:
                    slot.rest = ChildState.STOPPED

    async def _oversee(
        self, lives: trio.Nursery, task_status: trio.TaskStatus[None]
    ) -> GaveUpError | None:
        """Keep the children alive until `stop` is called (None), or one gives up."""
        announced = False
        while not self._stop_wanted:
            # One at a time: `_settle` can wait for siblings, and more lives end meanwhile.
            ended = next((s for s in self._slots if s.life is not None and s.life.is_ended), None)
            if ended is not None:
                gave_up = await self._settle(ended)
                if gave_up is not None:
                    return gave_up
                continue
            wake_at = self._start_due(lives)
            if not announced and all(slot.is_passed for slot in self._slots):
                announced = True
                task_status.started()
            with trio.move_on_at(wake_at):
                await self._bell.wait_ring()
        return None

    def _start_due(self, lives: trio.Nursery) -> float:
        """Start every child that may start; return the time when the next one is due."""
        now = trio.current_time()
        wake_at = float("inf")
        for slot in self._slots:
            if slot.life is None and slot.rest in _PENDING:
                if slot.due <= now:
                    self._start(slot, lives)
                else:
                    wake_at = min(wake_at, slot.due)
            # Start order: a child waits until all before it have been ready once.
            if not slot.is_passed:
                break
        return wake_at

    def _start(self, slot: _Slot, lives: trio.Nursery) -> None:
        def note_ready() -> None:
            # A late `started` of a life that is being stopped must not start its siblings.
            if slot.life is life and not life.stopping:
                slot.is_passed = True
                self._bell.ring()

        slot.rest = ChildState.STOPPED  # its state if this life is stopped
        # A cancellation from above would otherwise reach all children at once. `run` is not
        # shielded: it sees the cancellation, and cancels the lives itself, the last one first.
        life = slot.begin(f"{self._path}/{slot.spec.name}", shield=True, on_ready=note_ready)
        lives.start_soon(self._live, slot.spec, life, name=life.path)

    async def _live(self, spec: ChildSpec, life: ChildLife) -> None:
        try:
            await life.run(spec)
        finally:
            self._bell.ring()

    async def _settle(self, slot: _Slot) -> GaveUpError | None:
        """Decide what the end of a life means; stop the siblings that restart with it."""
        life, slot.life = slot.life, None
        assert life is not None
        if life.stopping:
            slot.note_stopped(life)  # it outlasted its `stop_grace`; its restart is decided
            return None
        failure = slot.failure_of(life)
        if failure is None:
            slot.rest, slot.is_passed = ChildState.DONE, True
            return None
        if slot.spec.restart is Restart.TEMPORARY:
            log.error("child.failed", child=life.path, exc_info=failure)
            slot.rest, slot.is_passed = ChildState.FAILED, True
            return None
        delay = slot.budget.next_delay(trio.current_time())
        if delay is None:
            log.error("child.gave_up", child=life.path, restarts=slot.restarts, exc_info=failure)
            slot.rest = ChildState.FAILED
            # Returned, not raised: the siblings are stopped first.
            gave_up = GaveUpError(life.path, slot.restarts)
            gave_up.__cause__ = failure
            return gave_up
        restarts = slot.restarts + 1
        log.warning(
            "child.restart", child=life.path, delay=delay, restarts=restarts, exc_info=failure
        )
        await self._schedule_restart(slot, delay)
        return None

    async def _schedule_restart(self, failed: _Slot, delay: float) -> None:
        """Stop the failed child's group, and schedule the restart of all of it after `delay`."""
        failed.rest = ChildState.BACKOFF
        failed.due = trio.current_time() + delay
        places = restart_group(self._strategy, self._slots.index(failed), len(self._slots))
        if len(places) == 1:
            return  # without siblings; `is_passed` stays, so that none waits for it again
        group = [self._slots[place] for place in places]
        await self._stop_in_reverse(group, ask=False)
        # The delay counts from here, after the group has stopped.
        due = trio.current_time() + delay
        for slot in group:
            slot.wait_again(due)
        # Again: `wait_again` made it WAITING, like the rest of its group.
        failed.rest = ChildState.BACKOFF

    async def _stop_in_reverse(self, slots: Sequence[_Slot], *, ask: bool) -> None:
        for slot in reversed(slots):
            if slot.life is not None:
                await self._stop_life(slot, slot.life, ask=ask)

    async def _stop_life(self, slot: _Slot, life: ChildLife, *, ask: bool) -> None:
        """End one life, and wait at most its grace for that."""
        # Before the first wait: from here on its end and its `started` mean nothing.
        life.stopping = True
        grace = slot.spec.stop_grace
        # A life that has just ended must not be asked: the request would stop the child's next one.
        if ask and slot.spec.stop is not None and not life.is_ended:
            slot.ask(life)
            with trio.move_on_after(grace):
                await life.gone.wait()
        life.scope.cancel(reason="stopped by its supervisor")
        with trio.move_on_after(grace):
            await life.gone.wait()
        if life.is_ended:
            slot.note_stopped(life)
        else:
            log.error("child.stop_timeout", child=life.path, grace=grace)


def _slot_of(child: ChildSpec | Component) -> _Slot:
    """Return the slot for a child, which may be a supervisor itself."""
    if isinstance(child, ChildSpec):
        return _Slot(child)
    return _Slot(child.as_spec(), child)
