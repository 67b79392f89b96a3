"""What a kubelet must keep towards a DRA driver, as a state machine without I/O.

A driver asks `DraRules` before each call. What the kubelet may never do is refused, and recorded by
name: `violations` must be empty at the end of a test. To prepare or to unprepare a claim again is
allowed: both are idempotent, and a kubelet does so after its restart.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.dra import calls
from kubelet_trio.testing.dra.calls import AskedClaim, DraCall


class DraRule(enum.StrEnum):
    """What a kubelet must keep; each value is the name of a violation."""

    NOT_EMPTY = "nothing is asked for"
    COMPLETE = "a claim without a namespace, name or UID"
    ONCE = "one claim twice in a call"
    SAME = "a UID that belongs to another claim"
    ALONE = "prepared and unprepared at the same time"


@dataclass(frozen=True, slots=True)
class DraViolation:
    """A call that broke a rule."""

    rule: DraRule
    text: str
    call: DraCall

    def __str__(self) -> str:
        return f"{self.call}: {self.rule}: {self.text}"


class DraRules:
    """What a driver has prepared, and whether the kubelet keeps the rules.

    Attributes:
        log: the calls, those that were refused too.
        prepared: the claims that are prepared now, by UID.
        violations: the calls that broke a rule.
    """

    def __init__(self) -> None:
        self.log: list[DraCall] = []
        self.prepared: dict[str, AskedClaim] = {}
        self.violations: list[DraViolation] = []
        self._known: dict[str, AskedClaim] = {}
        self._running: Counter[tuple[str, str]] = Counter()  # method and UID

    # What a test asks

    def check(self) -> None:
        """Raise AssertionError if the kubelet broke a rule."""
        if self.violations:
            raise AssertionError("\n".join(map(str, self.violations)))

    def count(self, method: str, uid: str = "") -> int:
        """Return how many calls of a method there were, with a claim if one is given."""
        return sum(call.method == method and uid in ("", *call.uids) for call in self.log)

    # What a driver asks

    def begin(self, call: DraCall) -> None:
        """Check a call that begins. Raises `GRPCError`: the answer instead."""
        self.log.append(call)
        if call.method == calls.WATCH:
            return
        if not call.claims:
            self._break(DraRule.NOT_EMPTY, call, call.method)
        for claim in call.claims:
            if not (claim.namespace and claim.name and claim.uid):
                self._break(DraRule.COMPLETE, call, str(claim))
            if self._known.setdefault(claim.uid, claim) != claim:
                self._break(DraRule.SAME, call, f"{claim}, before {self._known[claim.uid]}")
        if len(set(call.uids)) < len(call.uids):
            self._break(DraRule.ONCE, call, ", ".join(call.uids))
        other = calls.UNPREPARE if call.method == calls.PREPARE else calls.PREPARE
        if busy := [uid for uid in call.uids if self._running[other, uid]]:
            self._break(DraRule.ALONE, call, ", ".join(busy))
        self._running.update((call.method, uid) for uid in call.uids)

    def effect(self, call: DraCall, claims: tuple[AskedClaim, ...]) -> None:
        """Note that a call took effect for some of its claims."""
        for claim in claims:
            if call.method == calls.PREPARE:
                self.prepared[claim.uid] = claim
            else:
                self.prepared.pop(claim.uid, None)

    def end(self, call: DraCall) -> None:
        """Note that a call that began has ended, however it did."""
        self._running.subtract((call.method, uid) for uid in call.uids)

    def _break(self, rule: DraRule, call: DraCall, text: str) -> None:
        """Record a violation, and refuse the call."""
        self.violations.append(DraViolation(rule, text, call))
        raise GRPCError(Status.INVALID_ARGUMENT, f"{rule}: {text}")
