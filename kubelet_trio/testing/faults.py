"""Faults that a fake runtime injects into calls, for a number of calls or until lifted."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import trio

from kubelet_trio.cri import RuntimeCallError


class FaultKind(enum.Enum):
    """How a call fails."""

    ERROR = "error"  # fails after `delay`, takes no effect
    HANG = "hang"  # waits until the fault is lifted; then continues, if its deadline allows
    SLOW = "slow"  # takes `delay` longer
    LOST_REPLY = "lost reply"  # takes effect, then fails as if the connection had broken


@dataclass(eq=False, slots=True)
class Fault:
    """One fault: which calls it hits, how often, and how.

    `call` is CRI's name (`StopContainer`); "" matches any. `target` matches an id, a pod's UID or
    name, a container's name or an image of the call; "" matches any. With `times` None it lasts
    until lifted.
    """

    kind: FaultKind
    call: str = ""
    target: str = ""
    times: int | None = 1
    delay: float = 0.0
    error: RuntimeCallError | None = None  # for ERROR; None: a RuntimeCallError
    lifted: trio.Event = field(default_factory=trio.Event)

    def hits(self, call: str, targets: frozenset[str]) -> bool:
        return self.call in ("", call) and (not self.target or self.target in targets)


class _AnyFault(Protocol):
    times: int | None
    lifted: trio.Event


F = TypeVar("F", bound=_AnyFault)


class FaultList(Generic[F]):
    """The active faults, oldest first."""

    def __init__(self) -> None:
        self._faults: list[F] = []
        # Faults that have hit their last call: it may hang until they are lifted.
        self._spent: list[F] = []

    def __iter__(self) -> Iterator[F]:
        return iter(tuple(self._faults))

    def __len__(self) -> int:
        return len(self._faults)

    def activate(self, fault: F) -> F:
        """Add a fault; return it, for `lift`."""
        self._faults.append(fault)
        return fault

    def take_first(self, hits: Callable[[F], bool]) -> F | None:
        """Return the first fault that hits, and count it down."""
        fault = next(filter(hits, self._faults), None)
        if fault is not None and fault.times is not None:
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
                self._spent.append(fault)
        return fault

    def lift(self, fault: F) -> None:
        """End one fault; calls that hang on it continue."""
        fault.lifted.set()
        for kept in (self._faults, self._spent):
            if fault in kept:
                kept.remove(fault)

    def clear(self) -> None:
        """End all faults; calls that hang continue."""
        for fault in [*self._faults, *self._spent]:
            self.lift(fault)


class Faults(FaultList[Fault]):
    """The active faults of a runtime; the first that matches hits a call."""

    def add(
        self,
        kind: FaultKind,
        call: str = "",
        target: str = "",
        *,
        times: int | None = 1,
        delay: float = 0.0,
        error: RuntimeCallError | None = None,
    ) -> Fault:
        """Activate a fault; return it, for `lift`."""
        return self.activate(Fault(kind, call, target, times, delay, error))

    def take(self, call: str, targets: frozenset[str]) -> Fault | None:
        """Return the fault that hits this call, and count it down."""
        return self.take_first(lambda fault: fault.hits(call, targets))
