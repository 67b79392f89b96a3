"""The supervisor of a fixed list of children.

One task, `run`, owns the children's records and is the only one to change them. It works
on what is: each round it settles the lives that have ended, starts what may start, and
waits for a ring (a life ended or is ready, a stop is wanted) or for a back-off to end.

A child may start when all before it have been ready once, are done, or have failed for
good. A restart makes a new round for those that it stops: they wait in order again.

Each life stands in a cancel scope that is shielded from above, since a cancellation from
above would otherwise reach all children at once. The shield has an end: this task is not
shielded, so it notices the cancellation and cancels the lives itself, last one first,
waiting for each no longer than its `stop_grace`.

What may go wrong: a child keeps failing, then `GaveUpError` goes to whoever runs this
supervisor, after the siblings were stopped. A child does not end when cancelled (a shield
of its own): that is logged, its siblings are stopped all the same, and it is not started
again before it is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import trio

from kubelet_trio.model import Bell, get_logger
from kubelet_trio.supervision.child import ChildLife, ChildSpec, Component, subtree_of_life
from kubelet_trio.supervision.errors import GaveUpError
from kubelet_trio.supervision.policy import (
    DEFAULT_POLICY,
    Restart,
    RestartPolicy,
    Strategy,
    restart_group,
)
from kubelet_trio.supervision.slot import PENDING, Slot, slot_of
from kubelet_trio.supervision.tree import ChildState, DeclaredNode, TreeNode

log = get_logger()


class Supervisor:
    """Starts its children in order, restarts them as told, stops them in reverse.

    Args:
        name: Its name in the tree.
        children: In start order.
        strategy: Who restarts with a child that failed.
        policy: How often the supervisor above may restart this one. How often a child may
            restart is that child's policy.
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
        self._slots = [slot_of(child) for child in children]
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
                    # Each wait within is bounded by its child's grace, and all of them here.
                    with trio.move_on_after(self._stop_bound, shield=True):
                        await self._stop_in_reverse(self._slots, ask=False)
        if gave_up is not None:
            raise gave_up

    def stop(self) -> None:
        """Ask the children to finish, last one first; `run` returns when all are gone.

        Never blocks. Called before `run`, it makes the next `run` start nothing.
        """
        self._stop_wanted = True
        self._bell.ring()

    def tree(self) -> TreeNode:
        """Return this supervisor and all below it, as of now. Seen from inside `trio.run`."""
        state, age = ChildState.STOPPED, 0.0
        if self._began is not None:
            age = trio.current_time() - self._began
            is_ready = all(slot.is_passed for slot in self._slots)
            state = ChildState.RUNNING if is_ready else ChildState.STARTING
            state = ChildState.STOPPING if self._stop_wanted else state
        children = tuple(slot.node() for slot in self._slots)
        return TreeNode(self._name, state, age=age, children=children)

    def declared(self) -> DeclaredNode:
        """Return the names below this supervisor, as declared."""
        children = (
            DeclaredNode(slot.spec.name) if slot.component is None else slot.component.declared()
            for slot in self._slots
        )
        return DeclaredNode(self._name, self._strategy.value, tuple(children))

    def as_spec(self) -> ChildSpec:
        """Return this supervisor as the child of another: stopped, it is done."""
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
        # Its own part is a few steps of its task, also where it has no children.
        return 1.0 + sum(slot.spec.stop_bound for slot in self._slots)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Make the records new for this run, and close them after it."""
        self._began = trio.current_time()
        for slot in self._slots:
            slot.reset()
        try:
            yield
        finally:
            self._began = None
            self._stop_wanted = False
            for slot in self._slots:
                if slot.life is not None:
                    slot.note_stopped(slot.life)
                if slot.rest in PENDING:
                    slot.rest = ChildState.STOPPED

    async def _oversee(
        self, lives: trio.Nursery, task_status: trio.TaskStatus[None]
    ) -> GaveUpError | None:
        """Keep the children alive; return None when asked to stop."""
        announced = False
        while not self._stop_wanted:
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
        """Start every child whose turn it is; return when the next one is due."""
        now = trio.current_time()
        wake_at = float("inf")
        for slot in self._slots:
            if slot.life is None and slot.rest in PENDING:
                if slot.due <= now:
                    self._start(slot, lives)
                else:
                    wake_at = min(wake_at, slot.due)
            if not slot.is_passed:
                break
        return wake_at

    def _start(self, slot: Slot, lives: trio.Nursery) -> None:
        def note_ready() -> None:
            if slot.life is life and not life.stopping:
                slot.is_passed = True
                self._bell.ring()

        slot.rest = ChildState.STOPPED  # what it is once it has been stopped
        life = slot.begin(f"{self._path}/{slot.spec.name}", shield=True, on_ready=note_ready)
        lives.start_soon(self._live, slot.spec, life, name=life.path)

    async def _live(self, spec: ChildSpec, life: ChildLife) -> None:
        try:
            await life.run(spec)
        finally:
            self._bell.ring()

    async def _settle(self, slot: Slot) -> GaveUpError | None:
        """Decide what the end of a life means, and stop the siblings that go with it."""
        life, slot.life = slot.life, None
        assert life is not None
        if life.stopping:
            slot.note_stopped(life)  # it outlasted its stop; what comes next is settled already
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
            gave_up = GaveUpError(life.path, slot.restarts)
            gave_up.__cause__ = failure
            return gave_up
        restarts = slot.restarts + 1
        log.warning(
            "child.restart", child=life.path, delay=delay, restarts=restarts, exc_info=failure
        )
        await self._stand_back(slot, delay)
        return None

    async def _stand_back(self, failed: Slot, delay: float) -> None:
        """Put the failed child and its group in line for a restart after `delay`."""
        failed.rest = ChildState.BACKOFF
        failed.due = trio.current_time() + delay
        places = restart_group(self._strategy, self._slots.index(failed), len(self._slots))
        if len(places) == 1:
            return  # alone, it does not make its siblings wait once more
        group = [self._slots[place] for place in places]
        await self._stop_in_reverse(group, ask=False)
        due = trio.current_time() + delay
        for slot in group:
            slot.wait_again(due)
        failed.rest = ChildState.BACKOFF

    async def _stop_in_reverse(self, slots: Sequence[Slot], *, ask: bool) -> None:
        for slot in reversed(slots):
            if slot.life is not None:
                await self._stop_life(slot, slot.life, ask=ask)

    async def _stop_life(self, slot: Slot, life: ChildLife, *, ask: bool) -> None:
        """End one life and wait until it is gone, no longer than its grace."""
        life.stopping = True
        grace = slot.spec.stop_grace
        # One that ended by itself just now is not asked: its next life would take that up.
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
