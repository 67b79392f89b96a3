"""What a kubelet must keep towards a DRA driver."""

from __future__ import annotations

import pytest

from kubelet_trio.grpc import GRPCError
from kubelet_trio.testing.dra import AskedClaim, DraCall, DraRule, DraRules, calls

A, B = AskedClaim("ns", "a", "uid-a"), AskedClaim("ns", "b", "uid-b")


def call(method: str, *claims: AskedClaim) -> DraCall:
    return DraCall(method, calls.V1, claims)


def done(rules: DraRules, method: str, *claims: AskedClaim) -> None:
    asked = call(method, *claims)
    rules.begin(asked)
    rules.effect(asked, claims)
    rules.end(asked)


def test_both_calls_may_be_repeated() -> None:
    rules = DraRules()
    done(rules, calls.UNPREPARE, A)  # never prepared
    done(rules, calls.PREPARE, A, B)
    done(rules, calls.PREPARE, A)
    assert rules.prepared == {"uid-a": A, "uid-b": B}
    done(rules, calls.UNPREPARE, A)
    done(rules, calls.UNPREPARE, A)
    assert rules.prepared == {"uid-b": B}
    assert rules.count(calls.PREPARE) == 2
    assert rules.count(calls.PREPARE, "uid-b") == 1
    rules.check()


@pytest.mark.parametrize(
    ("claims", "rule"),
    [
        ((), DraRule.NOT_EMPTY),
        ((AskedClaim("ns", "a", ""),), DraRule.COMPLETE),
        ((AskedClaim("", "a", "uid-a"),), DraRule.COMPLETE),
        ((A, A), DraRule.ONCE),
        ((AskedClaim("ns", "other", "uid-a"),), DraRule.SAME),
    ],
)
@pytest.mark.parametrize("method", [calls.PREPARE, calls.UNPREPARE])
def test_what_is_refused(method: str, claims: tuple[AskedClaim, ...], rule: DraRule) -> None:
    rules = DraRules()
    done(rules, calls.PREPARE, A)
    with pytest.raises(GRPCError, match=str(rule)):
        rules.begin(call(method, *claims))
    assert [violation.rule for violation in rules.violations] == [rule]
    with pytest.raises(AssertionError, match=str(rule)):
        rules.check()
    assert rules.prepared == {"uid-a": A}


def test_a_claim_is_not_prepared_while_it_is_unprepared() -> None:
    rules = DraRules()
    first = call(calls.UNPREPARE, A)
    rules.begin(first)
    rules.begin(call(calls.PREPARE, B))
    with pytest.raises(GRPCError, match=str(DraRule.ALONE)):
        rules.begin(call(calls.PREPARE, A))
    rules.end(first)
    done(rules, calls.PREPARE, A)
