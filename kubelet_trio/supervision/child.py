"""A child and its lives: the part that both kinds of supervisor share.

A *child* is declared by a `ChildSpec`; its name, restart count and last error last as long as its
supervisor. A *life* is one run of it, in a task and a cancel scope of its own, so that
a child can be stopped without its siblings, and its failure stays in its own task.

`ChildLife.run` is the only place that catches a child's exceptions: an `Exception`, alone or in
groups, is the child's failure, and its supervisor decides. Other exceptions propagate.

A supervisor that is run within a life becomes a subtree of that life: a pod worker runs the
supervisor of its probes, and `tree` shows it below the worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import structlog
import trio

from kubelet_trio.model import LateEvent, get_logger
from kubelet_trio.supervision.policy import DEFAULT_POLICY, Restart, RestartPolicy
from kubelet_trio.supervision.tree import ChildState, DeclaredNode, TreeNode

log = get_logger()


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The declaration of a child.

    `run(task_status=...)` is its body. It must call `task_status.started()` once it runs
    (not: once it is connected); then the sibling after it starts.

    `stop`, if any, asks the child to finish; it must neither block nor raise. The child then has
    `stop_grace` seconds before it is cancelled. A cancelled child has `stop_grace` seconds for
    its own bounded cleanup before its supervisor goes on without it. If the supervisor itself is
    cancelled, it cancels its children without asking.

    `note` returns a few words for the tree while the child lives, "" for none. It must neither
    block nor raise.
    """

    name: str
    run: Callable[..., Awaitable[None]]
    restart: Restart = Restart.PERMANENT
    policy: RestartPolicy = DEFAULT_POLICY
    stop: Callable[[], None] | None = None
    stop_grace: float = 5.0
    note: Callable[[], str] = lambda: ""

    @property
    def stop_bound(self) -> float:
        """The maximum seconds for asking, cancelling and waiting."""
        return self.stop_grace * (1 if self.stop is None else 2)


class Component(Protocol):
    """A supervisor, as a part of a tree."""

    @property
    def name(self) -> str: ...
    def declared(self) -> DeclaredNode: ...
    def tree(self) -> TreeNode: ...
    def as_spec(self) -> ChildSpec: ...


class ChildLife:
    """One run of a child: its scope, its readiness, and how it ended."""

    __slots__ = (
        "_on_ready",
        "began",
        "component",
        "failure",
        "gone",
        "path",
        "ready",
        "scope",
        "stopping",
        "subtrees",
    )

    def __init__(
        self,
        path: str,
        *,
        shield: bool,
        on_ready: Callable[[], None],
        component: Component | None = None,
    ) -> None:
        self.path = path
        self.component = component
        self.scope = trio.CancelScope(shield=shield)
        self.began = trio.current_time()
        self.gone = LateEvent()
        self.ready = False
        self.stopping = False  # set before it is asked or cancelled
        self.failure: Exception | None = None
        self.subtrees: list[Component] = []
        self._on_ready = on_ready

    def started(self, _value: object = None) -> None:
        """Record that the child is ready: this life is the child's `task_status`."""
        # `trio.Nursery.start` refuses a second call as well.
        if self.ready:
            raise RuntimeError(f"{self.path}: called 'started' twice in one life")
        self.ready = True
        self._on_ready()

    async def run(self, spec: ChildSpec) -> None:
        """Run the child's body to its end, and record its failure."""
        # Context variables, so that the child's own tasks inherit both.
        _current.set(self)
        structlog.contextvars.bind_contextvars(child=self.path)
        try:
            with self.scope:
                await spec.run(task_status=self)
        # Not `Exception`: `Cancelled` is no failure and ends at its scope; `KeyboardInterrupt` and
        # `SystemExit` reach the top of the tree, and the supervisors on the way stop in order.
        except BaseExceptionGroup as group:
            self._note_group(group)
        except Exception as exc:  # noqa: BLE001  # the one catch-all: the supervisor decides
            self.failure = exc
        finally:
            self.gone.set()

    @property
    def is_ended(self) -> bool:
        return self.gone.is_set()

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return trio.current_time() - self.began

    @property
    def state(self) -> ChildState:
        if self.stopping:
            return ChildState.STOPPING
        return ChildState.RUNNING if self.ready else ChildState.STARTING

    def _note_group(self, group: BaseExceptionGroup[BaseException]) -> None:
        failures, rest = group.split(Exception)
        self.failure = failures
        # A child's nursery can raise failures together with Cancelled. That must reach its scope,
        # or trio would lose the cancellation.
        if rest is not None:
            raise rest from failures


_current: ContextVar[ChildLife | None] = ContextVar("supervision_life", default=None)


def is_within(life: ChildLife | None) -> bool:
    """Whether the current task belongs to this life itself, not to a child below it."""
    return life is not None and _current.get() is life


@contextlib.contextmanager
def subtree_of_life(component: Component) -> Iterator[str]:
    """Attach a running supervisor to the life that runs it; yield its path in the tree."""
    # Tasks inherit the context of the task that starts them, so this finds the innermost life.
    life = _current.get()
    if life is None:
        yield component.name
    elif life.component is component:
        yield life.path  # the supervisor is that child itself
    else:
        life.subtrees.append(component)
        try:
            yield f"{life.path}/{component.name}"
        finally:
            life.subtrees.remove(component)


@dataclass(slots=True)
class Child:
    """A supervisor's record of a child, across its lives."""

    spec: ChildSpec
    component: Component | None = None  # set if the child is a supervisor itself
    life: ChildLife | None = None
    lives: int = 0
    last_error: str | None = None
    rest: ChildState = ChildState.WAITING  # its state without a life

    @property
    def restarts(self) -> int:
        return max(0, self.lives - 1)

    def begin(self, path: str, *, shield: bool, on_ready: Callable[[], None]) -> ChildLife:
        """Return the next life of this child, not yet run."""
        self.lives += 1
        self.life = ChildLife(path, shield=shield, on_ready=on_ready, component=self.component)
        return self.life

    def failure_of(self, life: ChildLife) -> Exception | None:
        """Return the failure of a life that was not stopped, None if it ended well."""
        failure = life.failure
        # A service that returns without a request to stop is as broken as one that crashed.
        if failure is None and self.spec.restart is Restart.PERMANENT:
            failure = RuntimeError(f"{life.path}: returned, and is permanent")
        if failure is not None:
            self.last_error = describe(failure)
        return failure

    def note_stopped(self, life: ChildLife) -> None:
        """Drop a life that was stopped; a failure of it is only logged and shown."""
        self.life = None
        if life.failure is not None:
            self.last_error = describe(life.failure)
            log.warning("child.stop_failed", child=life.path, exc_info=life.failure)

    def ask(self, life: ChildLife) -> None:
        """Ask the child to finish, if it has a `stop`."""
        life.stopping = True
        if self.spec.stop is None:
            return
        try:
            self.spec.stop()
        except Exception:  # a bug in one child's `stop` must not keep its siblings running
            log.warning("child.stop_failed", child=life.path, exc_info=True)

    def node(self) -> TreeNode:
        """Return a snapshot of this child and everything below it."""
        life = self.life
        if self.component is not None:
            below = self.component.tree().children
        else:
            below = () if life is None else tuple(part.tree() for part in life.subtrees)
        return TreeNode(
            self.spec.name,
            self.rest if life is None else life.state,
            self.restarts,
            self.last_error,
            0.0 if life is None else life.age,
            below,
            "" if life is None else self.spec.note(),
        )


def describe(exc: BaseException) -> str:
    """Describe an exception in one line; a group by its first failure and their number."""
    leaf, others = exc, 0
    while isinstance(leaf, BaseExceptionGroup):
        others += len(leaf.exceptions) - 1
        leaf = leaf.exceptions[0]
    first_line = next(iter(str(leaf).splitlines()), "")
    text = f"{type(leaf).__name__}: {first_line}" if first_line else type(leaf).__name__
    return f"{text} (and {others} more)" if others else text
