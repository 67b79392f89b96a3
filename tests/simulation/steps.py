"""Steps of a machine: hypothesis' rules, each followed by a pause of virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.simulation.stepper import Stepper

# Many are shorter than a call, so that the next step comes in the middle of what the last
# one set going.
PAUSES = (0.0, 0.0, 0.004, 0.013, 0.013, 0.05, 0.2, 1.1, 6.0)


class Stepped(Protocol):
    """A machine with a trio run of its own."""

    run: Stepper


def step(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Make a method a rule: called with what the strategies draw, then time passes."""

    def decorate(method: Callable[..., None]) -> Any:
        def take(self: Stepped, then: float, **drawn: Any) -> None:
            method(self, **drawn)
            self.run.sleep(then)

        take.__name__ = method.__name__  # what a failing example calls it
        drawn: dict[str, Any] = {**strategies, "then": st.sampled_from(PAUSES)}
        rule_of_any: Callable[..., Callable[[Any], Any]] = rule
        return rule_of_any(**drawn)(take)

    return decorate
