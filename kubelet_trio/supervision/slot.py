"""A child at its place in a fixed list: whether it may start, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from kubelet_trio.supervision.child import Child, ChildSpec, Component
from kubelet_trio.supervision.policy import Restart, RestartBudget
from kubelet_trio.supervision.tree import ChildState

PENDING = (ChildState.WAITING, ChildState.BACKOFF)


@dataclass(slots=True)
class Slot(Child):
    """A child at its place in the start order."""

    budget: RestartBudget = field(default_factory=RestartBudget)
    due: float = -float("inf")  # not to be started before this trio time
    is_passed: bool = False  # the sibling after it may start

    def reset(self) -> None:
        """Make it new for another run of its supervisor; its counts stay."""
        self.budget = self.spec.policy.budget()
        self.rest = ChildState.WAITING
        self.due = -float("inf")
        self.is_passed = False

    def wait_again(self, due: float) -> None:
        """Put it back in line after its group was stopped."""
        if self.spec.restart is Restart.TEMPORARY and self.rest not in PENDING:
            self.is_passed = True  # never started again, and nobody waits for it
            return
        # A transient child that was done runs again: what it prepared went with its group.
        self.rest, self.due, self.is_passed = ChildState.WAITING, due, False


def slot_of(child: ChildSpec | Component) -> Slot:
    """Return the place of a child, or of a supervisor that is one."""
    if isinstance(child, ChildSpec):
        return Slot(child)
    return Slot(child.as_spec(), child)
