"""The supervisor of children that are added and removed at run time: one per pod, one per probe.

Its children are unrelated: they start and stop concurrently, and their failures never
escalate. A child that keeps crashing is restarted for ever, each time after a longer
delay up to the cap; `on_crash` is called for each crash, and the others are not affected.

`start_child` and `stop_child` only record a request and ring the bell: they never block,
and any task of the tree may call them. The supervisor's own task starts a task for each child
in its own nursery. A name is in use until its child has ended, so that two lives of
one name never overlap. A start before that, also by the ending child itself, adds a successor,
which starts then.

This supervisor fails only by a bug of this module, or a `BaseException` of a child. When its own
supervisor restarts it, it continues with the same children.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from kubelet_trio.model import Bell, LateEvent, get_logger
from kubelet_trio.supervision.child import Child, ChildLife, ChildSpec, is_within, subtree_of_life
from kubelet_trio.supervision.policy import DEFAULT_POLICY, CrashBackoff, Restart, RestartPolicy
from kubelet_trio.supervision.tree import ChildState, DeclaredNode, TreeNode

log = get_logger()

OnCrash = Callable[[str, BaseException, int], None]


@dataclass(slots=True, eq=False)
class _Entry(Child):
    """A child, with the cancel scope around its lives and the delays between them."""

    backoff: CrashBackoff = field(default_factory=CrashBackoff)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_task: bool = False  # `_keep` runs for it
    is_unwanted: bool = False  # to be stopped, then dropped
    is_being_stopped: bool = False  # `_stop_entry` runs for it
    gone: LateEvent = field(default_factory=LateEvent)
    successor: ChildSpec | None = None  # to be started after this one has ended


class DynamicSupervisor:
    """Runs children by name, added and removed at run time; never gives up.

    Args:
        name: Its name in the tree.
        on_crash: Called with a child's name, its failure, and the number of its restarts
            including the next one. Must not block; its exceptions are logged.
        policy: How often the supervisor above may restart this one.
        stop_grace: Seconds for all children together to finish when asked to stop, and
            again for their cleanup when cancelled.
    """

    def __init__(
        self,
        name: str,
        *,
        on_crash: OnCrash | None = None,
        policy: RestartPolicy = DEFAULT_POLICY,
        stop_grace: float = 10.0,
    ) -> None:
        self._name = name
        self._on_crash = on_crash
        self._policy = policy
        self._stop_grace = stop_grace
        self._entries: dict[str, _Entry] = {}
        self._bell = Bell()
        self._idle = trio.Event()
        self._idle.set()
        self._stop_wanted = False
        self._path = name
        self._began: float | None = None

    @property
    def name(self) -> str:
        return self._name

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the requested children until `stop` is called; ready at once."""
        if self._began is not None:
            raise RuntimeError(f"{self._path}: runs already")
        with subtree_of_life(self) as self._path:
            self._began = trio.current_time()
            try:
                async with trio.open_nursery() as keepers:
                    # Its children come and go at run time, so nothing waits for one to be ready.
                    task_status.started()
                    while not self._stop_wanted:
                        self._act(keepers)
                        await self._bell.wait_ring()
                    for entry in self._entries.values():
                        self._begin_stop(entry, keepers)
            finally:
                self._began = None
                self._stop_wanted = False

    def stop(self) -> None:
        """Ask all children to finish; `run` returns when they have ended. Never blocks."""
        self._stop_wanted = True
        self._bell.ring()

    def start_child(self, spec: ChildSpec) -> None:
        """Request a child. Never blocks; the child starts as soon as this supervisor runs.

        While a child of that name is being stopped, or if that child itself calls this, the new
        one becomes its successor.

        Raises:
            ValueError: the name is in use, or has a successor already.
        """
        present = self._entries.get(spec.name)
        if present is None:
            self._add(spec)
        elif present.successor is None and (present.is_unwanted or is_within(present.life)):
            present.successor = spec
        else:
            raise ValueError(f"{self._path}: the name {spec.name!r} is in use")
        self._bell.ring()

    def stop_child(self, name: str) -> None:
        """Request the end of a child: ask it, cancel it after its grace. Never blocks.

        A name that is not in use is ignored.
        """
        entry = self._entries.get(name)
        if entry is None:
            return
        entry.is_unwanted, entry.successor = True, None
        if not entry.has_task:
            # It has no task yet, so no `_keep` will drop it.
            self._forget(entry)
        self._bell.ring()

    def names(self) -> tuple[str, ...]:
        """Return the names in use, in the order of their requests."""
        return tuple(self._entries)

    async def wait_child_gone(self, name: str) -> None:
        """Wait until the current child of this name has ended."""
        entry = self._entries.get(name)
        if entry is not None:
            await entry.gone.wait()

    async def wait_idle(self) -> None:
        """Wait until there is no child."""
        # Checked again: a child may be added between the event and this task's turn.
        while self._entries:
            await self._idle.wait()

    def tree(self) -> TreeNode:
        """Return a snapshot of this supervisor and everything below it. Inside `trio.run` only."""
        state, age = ChildState.STOPPED, 0.0
        if self._began is not None:
            age = trio.current_time() - self._began
            state = ChildState.STOPPING if self._stop_wanted else ChildState.RUNNING
        children = tuple(entry.node() for entry in self._entries.values())
        return TreeNode(self._name, state, age=age, children=children)

    def declared(self) -> DeclaredNode:
        """Return its node, without children: they are not declared."""
        return DeclaredNode(self._name, "dynamic")

    def as_spec(self) -> ChildSpec:
        """Return this supervisor as a child; transient, because it returns after `stop`."""
        return ChildSpec(
            self._name,
            self.run,
            Restart.TRANSIENT,
            self._policy,
            stop=self.stop,
            stop_grace=self._stop_grace,
        )

    def _add(self, spec: ChildSpec) -> None:
        if not self._entries:
            self._idle = trio.Event()
        self._entries[spec.name] = _Entry(spec, backoff=spec.policy.backoff())

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.spec.name]
        # Before `gone`: otherwise its waiters could take the name.
        if entry.successor is not None:
            self._add(entry.successor)
        entry.gone.set()
        if not self._entries:
            self._idle.set()
        self._bell.ring()

    def _act(self, keepers: trio.Nursery) -> None:
        """Start a task for every new child, and stop every unwanted one."""
        for entry in self._entries.values():
            if entry.is_unwanted:
                self._begin_stop(entry, keepers)
            elif not entry.has_task:
                entry.has_task = True
                # A new one after a restart of this supervisor: trio enters a scope only once.
                entry.scope = trio.CancelScope()
                # Not `Nursery.start`: a child that is slow to be ready must not delay the others.
                keepers.start_soon(self._keep, entry, name=self._path_of(entry))

    def _begin_stop(self, entry: _Entry, keepers: trio.Nursery) -> None:
        if entry.has_task and not entry.is_being_stopped:
            entry.is_being_stopped = True
            keepers.start_soon(_stop_entry, entry, name=f"{self._path_of(entry)} (stop)")

    async def _keep(self, entry: _Entry) -> None:
        """Run a child's lives; drop the child when it is over or unwanted."""
        is_over = False
        try:
            with entry.scope:
                is_over = await self._live(entry)
        finally:
            entry.has_task = entry.is_being_stopped = False
            # Else this supervisor was cancelled: its next run starts the child again.
            if is_over or entry.is_unwanted:
                self._forget(entry)

    async def _live(self, entry: _Entry) -> bool:
        """Run one life after the other; return True when the child needs no other life."""
        while True:
            # No shield: these children have no order, so a cancellation may reach all at once.
            life = entry.begin(self._path_of(entry), shield=False, on_ready=_ignore)
            entry.rest = ChildState.STOPPED  # its state if this life is stopped
            try:
                await life.run(entry.spec)
            except BaseException:  # Cancelled, or one that propagates to the top
                entry.note_stopped(life)
                raise
            # Also a life that ended by itself while its scope was being cancelled: in trio an
            # effective deadline of -inf means that the current scope is cancelled.
            if life.stopping or trio.current_effective_deadline() == -float("inf"):
                entry.note_stopped(life)
                return False
            entry.life = None
            failure = entry.failure_of(life)
            if failure is None:
                return True
            delay = self._settle_crash(entry, life, failure)
            if delay is None:
                return True
            await trio.sleep(delay)

    def _settle_crash(self, entry: _Entry, life: ChildLife, failure: Exception) -> float | None:
        """Log a crash; return the delay until the next life, None if there is none."""
        delay: float | None = None
        # A successor replaces the crashed child, so it is not restarted.
        if entry.spec.restart is Restart.TEMPORARY or entry.successor is not None:
            log.error("child.failed", child=life.path, exc_info=failure)
        else:
            delay = entry.backoff.next_delay(life.age)
            entry.rest = ChildState.BACKOFF
            log.warning(
                "child.restart",
                child=life.path,
                delay=delay,
                restarts=entry.lives,
                exc_info=failure,
            )
        self._call_on_crash(entry, failure)
        return delay

    def _call_on_crash(self, entry: _Entry, failure: Exception) -> None:
        if self._on_crash is None:
            return
        try:
            self._on_crash(entry.spec.name, failure, entry.lives)
        except Exception:  # a bug in the hook must not end the children
            log.error("child.on_crash_failed", child=self._path_of(entry), exc_info=True)

    def _path_of(self, entry: _Entry) -> str:
        return f"{self._path}/{entry.spec.name}"


async def _stop_entry(entry: _Entry) -> None:
    """Ask a child to finish, cancel it after its grace; log if it still does not end."""
    life, grace = entry.life, entry.spec.stop_grace
    if life is not None and entry.spec.stop is not None:
        entry.ask(life)
        with trio.move_on_after(grace):
            await life.gone.wait()
    entry.scope.cancel(reason="stopped by its supervisor")
    # Between two lives there is only the sleep of the back-off to cancel.
    if life is None:
        return
    life.stopping = True
    with trio.move_on_after(grace):
        await life.gone.wait()
    if not life.is_ended:
        log.error("child.stop_timeout", child=life.path, grace=grace)


def _ignore() -> None:
    """Ignore readiness: dynamic children have no order."""
