"""What a kubelet must keep towards a device plugin."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kubelet_trio.grpc import GRPCError
from kubelet_trio.testing.devices import (
    AskedDevices,
    DeviceCall,
    DeviceRule,
    DeviceRules,
    FakeDevice,
    calls,
)

LISTED = (FakeDevice("a"), FakeDevice("b"), FakeDevice("sick", is_healthy=False))


def allocate(*containers: Sequence[str]) -> DeviceCall:
    return DeviceCall(calls.ALLOCATE, tuple(AskedDevices(tuple(ids)) for ids in containers))


def prefer(available: Sequence[str], must: Sequence[str] = (), size: int = 1) -> DeviceCall:
    asked = AskedDevices((), tuple(available), tuple(must), size)
    return DeviceCall(calls.PREFER, (asked,))


def pre_start(*ids: str) -> DeviceCall:
    return DeviceCall(calls.PRE_START, (AskedDevices(ids),))


def listing(**settings: bool) -> DeviceRules:
    rules = DeviceRules(**settings)
    rules.note_list(LISTED, 0.0)
    return rules


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (allocate(), DeviceRule.NOT_EMPTY),
        (allocate(["a"], []), DeviceRule.NOT_EMPTY),
        (allocate(["a", "a"]), DeviceRule.ONCE),
        (allocate(["a"], ["a"]), DeviceRule.ONCE),
        (allocate(["other"]), DeviceRule.LISTED),
        (allocate(["a", "sick"]), DeviceRule.HEALTHY),
        (prefer(["a", "sick"]), DeviceRule.HEALTHY),
        (prefer(["a", "other"]), DeviceRule.LISTED),
        (prefer(["a"], ["b"]), DeviceRule.MUST_BE_AVAILABLE),
        (prefer(["a", "b"], ["a", "b"], 1), DeviceRule.SIZE),
        (prefer(["a", "b"], size=3), DeviceRule.SIZE),
        (prefer(["a"], size=0), DeviceRule.NOT_EMPTY),
        (pre_start("a"), DeviceRule.ALLOCATED),
        (pre_start(), DeviceRule.NOT_EMPTY),
    ],
)
def test_a_breach_is_refused_and_recorded(call: DeviceCall, rule: DeviceRule) -> None:
    rules = listing(prefers=True, needs_pre_start=True)
    with pytest.raises(GRPCError):
        rules.take(call, 1.0)
    assert [violation.rule for violation in rules.violations] == [rule]
    with pytest.raises(AssertionError, match=rule):
        rules.check()


@pytest.mark.parametrize("call", [prefer(["a"]), pre_start("a")])
def test_what_the_options_do_not_offer_is_not_called(call: DeviceCall) -> None:
    rules = listing()
    with pytest.raises(GRPCError, match="UNIMPLEMENTED"):
        rules.take(call, 1.0)
    assert [violation.rule for violation in rules.violations] == [DeviceRule.OPTION]


def test_what_the_rules_allow_is_counted() -> None:
    rules = listing(prefers=True, needs_pre_start=True)
    for call in (prefer(["a", "b"], ["a"], 2), allocate(["b"], ["a"]), pre_start("a", "b")):
        rules.take(call, 1.0)
        rules.answer(call)
    rules.check()
    assert rules.allocated == {"a": 1, "b": 1}
    assert len(rules.log) == 3


def test_a_kubelet_has_a_moment_to_notice_a_new_list() -> None:
    rules = DeviceRules(settle=1.0)
    rules.note_list([FakeDevice("a"), FakeDevice("b")], 0.0)
    rules.note_list([FakeDevice("a", is_healthy=False)], 10.0)
    rules.take(allocate(["a"]), 11.0)
    rules.take(allocate(["b"]), 11.0)
    for device in ("a", "b"):
        with pytest.raises(GRPCError):
            rules.take(allocate([device]), 11.5)
    assert [v.rule for v in rules.violations] == [DeviceRule.HEALTHY, DeviceRule.LISTED]


def test_further_lists_do_not_lengthen_that_moment() -> None:
    rules = DeviceRules(settle=1.0)
    rules.note_list([FakeDevice("a")], 0.0)
    for at in (10.0, 10.5, 11.0):
        rules.note_list([], at)
    with pytest.raises(GRPCError):
        rules.take(allocate(["a"]), 11.5)


def test_a_device_that_recovers_may_be_asked_for_again() -> None:
    rules = DeviceRules()
    rules.note_list([FakeDevice("a", is_healthy=False)], 0.0)
    rules.note_list([FakeDevice("a")], 5.0)
    rules.take(allocate(["a"]), 5.0)
    rules.check()


def test_an_exclusive_device_is_allocated_once_until_it_is_given_back() -> None:
    rules = listing(is_exclusive=True)
    rules.take(allocate(["a"]), 0.0)
    rules.answer(allocate(["a"]))
    with pytest.raises(GRPCError, match="another container"):
        rules.take(allocate(["a", "b"]), 0.0)
    rules.give_back("a")
    rules.take(allocate(["a", "b"]), 0.0)


def test_what_was_saved_continues() -> None:
    rules = listing(is_exclusive=True, needs_pre_start=True)
    rules.take(allocate(["a"]), 0.0)
    rules.answer(allocate(["a"]))
    with pytest.raises(GRPCError):
        rules.take(allocate(["gone"]), 0.0)
    again = listing(is_exclusive=True, needs_pre_start=True)
    again.from_json(rules.to_json())
    again.take(pre_start("a"), 0.0)
    assert again.broken() == ["Allocate: a device that the plugin does not list: gone"]
    with pytest.raises(GRPCError, match="another container"):
        again.take(allocate(["a"]), 0.0)
