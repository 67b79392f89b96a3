"""The rules of the CSI node service: what is refused, how, and what counts as a violation."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.csi import (
    AskedCapability,
    CsiCall,
    CsiRule,
    CsiRules,
    NodeFeature,
    StoredVolume,
    calls,
)

STAGING, TARGET, OTHER = "/staging", "/pods/a/mount", "/pods/b/mount"
WRITER = AskedCapability("SINGLE_NODE_WRITER")
STAGE = CsiCall(calls.STAGE, "vol", STAGING, capability=WRITER)
PUBLISH = CsiCall(calls.PUBLISH, "vol", STAGING, TARGET, WRITER)
UNPUBLISH = CsiCall(calls.UNPUBLISH, "vol", path=TARGET)
UNSTAGE = CsiCall(calls.UNSTAGE, "vol", STAGING)
EXPAND = CsiCall(calls.EXPAND, "vol", STAGING, TARGET, required_bytes=10)
STATS = CsiCall(calls.STATS, "vol", STAGING, TARGET)
EPHEMERAL = replace(PUBLISH, staging_path="", volume_context={calls.EPHEMERAL_KEY: "true"})


def rules(**options: Any) -> CsiRules:
    return CsiRules(**{"is_directory": lambda path: "missing" not in path, **options})


def do(tested: CsiRules, *wanted: CsiCall) -> list[bool]:
    """Do calls to their end; return which of them changed something."""
    changed = []
    for call in wanted:
        with tested.operation(call) as operation:
            changed.append(operation.is_needed)
            if operation.is_needed:
                with operation.effect():
                    pass
    return changed


def refuse(tested: CsiRules, call: CsiCall) -> Status:
    with pytest.raises(GRPCError) as caught:
        do(tested, call)
    return caught.value.status


def fail(tested: CsiRules, call: CsiCall, *, effect: bool, status: Status) -> None:
    """Do a call that is answered an error before or after its effect."""
    with suppress(GRPCError), tested.operation(call) as operation:
        with operation.effect():
            if not effect:
                raise GRPCError(status, "")
        raise GRPCError(status, "")


def test_a_life_of_a_volume_breaks_no_rule() -> None:
    tested = rules()
    assert all(do(tested, STAGE, PUBLISH, STATS, EXPAND))
    assert tested.staged() == {"vol": [STAGING]}
    assert tested.published() == {"vol": [TARGET]}
    assert tested.size("vol") == 10
    do(tested, UNPUBLISH, UNSTAGE)
    assert (tested.staged(), tested.published()) == ({}, {})
    tested.check()


def test_repeated_calls_are_ok_and_do_nothing() -> None:
    tested = rules()
    assert do(tested, STAGE, STAGE, PUBLISH, PUBLISH) == [True, False, True, False]
    assert do(tested, UNPUBLISH, UNPUBLISH, UNSTAGE, UNSTAGE) == [True, False, True, False]
    tested.check()


def test_new_tokens_and_secrets_do_not_make_a_publish_another_one() -> None:
    tested = rules()
    token = {"csi.storage.k8s.io/serviceAccount.tokens": "new"}
    do(tested, STAGE, PUBLISH, replace(PUBLISH, volume_context=token, secrets={"key": "new"}))
    tested.check()


def long_map() -> dict[str, str]:
    return {f"key{n}": "x" * 100 for n in range(50)}


@pytest.mark.parametrize(
    ("before", "call", "rule", "status"),
    [
        ([], PUBLISH, CsiRule.STAGED_FIRST, 9),
        ([STAGE], replace(PUBLISH, staging_path=""), CsiRule.STAGED_FIRST, 9),
        ([STAGE], replace(PUBLISH, staging_path="/else"), CsiRule.STAGED_FIRST, 9),
        ([STAGE, PUBLISH], UNSTAGE, CsiRule.UNPUBLISHED_FIRST, 9),
        ([STAGE], replace(STAGE, staging_path="/else"), CsiRule.ONE_STAGING_PATH, 9),
        ([], replace(STAGE, staging_path="/missing"), CsiRule.STAGING_DIRECTORY, 9),
        ([STAGE], replace(PUBLISH, path="/missing/mount"), CsiRule.TARGET_PARENT, 9),
        (
            [STAGE, PUBLISH, replace(STAGE, volume_id="two", staging_path="/2")],
            replace(PUBLISH, volume_id="two", staging_path="/2"),
            CsiRule.OWN_TARGET,
            9,
        ),
        ([STAGE, PUBLISH], replace(PUBLISH, is_read_only=True), CsiRule.SAME_ARGUMENTS, 6),
        ([STAGE], replace(STAGE, publish_context={"a": "b"}), CsiRule.SAME_ARGUMENTS, 6),
        (
            [STAGE],
            replace(PUBLISH, capability=AskedCapability("MULTI_NODE_MULTI_WRITER")),
            CsiRule.SAME_ARGUMENTS,
            9,
        ),
        ([], replace(STAGE, volume_id=""), CsiRule.REQUIRED_FIELD, 3),
        ([], replace(STAGE, capability=None), CsiRule.REQUIRED_FIELD, 3),
        ([], replace(STAGE, capability=AskedCapability("UNKNOWN")), CsiRule.REQUIRED_FIELD, 3),
        ([], replace(UNPUBLISH, path=""), CsiRule.REQUIRED_FIELD, 3),
        ([], replace(STAGE, volume_id="x" * 129), CsiRule.SIZE, 3),
        ([], replace(STAGE, volume_context=long_map()), CsiRule.SIZE, 3),
        (
            [],
            replace(STAGE, capability=AskedCapability(mount_flags=("x" * 5000,))),
            CsiRule.SIZE,
            3,
        ),
        ([], replace(STAGE, staging_path="staging"), CsiRule.ABSOLUTE_PATH, 3),
        ([], EXPAND, CsiRule.EXPANDED_WHERE_MOUNTED, 9),
        ([], replace(EPHEMERAL, method=calls.STAGE, staging_path="/s"), CsiRule.EPHEMERAL, 9),
        ([EPHEMERAL], replace(EPHEMERAL, path=OTHER), CsiRule.EPHEMERAL, 9),
        ([], replace(EPHEMERAL, staging_path=STAGING), CsiRule.CAPABILITY, 9),
    ],
)
def test_a_broken_rule_is_refused_and_recorded(
    before: list[CsiCall], call: CsiCall, rule: CsiRule, status: int
) -> None:
    tested = rules()
    do(tested, *before)
    assert refuse(tested, call) is Status(status)
    assert [violation.rule for violation in tested.violations] == [rule]
    with pytest.raises(AssertionError, match=call.method):
        tested.check()


@pytest.mark.parametrize(
    ("missing", "call", "status"),
    [
        (NodeFeature.STAGE_UNSTAGE_VOLUME, STAGE, 12),
        (NodeFeature.STAGE_UNSTAGE_VOLUME, UNSTAGE, 12),
        (NodeFeature.STAGE_UNSTAGE_VOLUME, PUBLISH, 9),
        (NodeFeature.EXPAND_VOLUME, EXPAND, 12),
        (
            NodeFeature.SINGLE_NODE_MULTI_WRITER,
            replace(STAGE, capability=AskedCapability("SINGLE_NODE_SINGLE_WRITER")),
            3,
        ),
        (
            NodeFeature.VOLUME_MOUNT_GROUP,
            replace(STAGE, capability=AskedCapability(mount_group="1000")),
            3,
        ),
    ],
)
def test_what_the_driver_cannot_do_is_not_asked_for(
    missing: NodeFeature, call: CsiCall, status: int
) -> None:
    tested = rules(features=frozenset(NodeFeature) - {missing})
    assert refuse(tested, call) is Status(status)
    assert [violation.rule for violation in tested.violations] == [CsiRule.CAPABILITY]


def test_without_staging_a_publish_needs_none() -> None:
    tested = rules(features=())
    do(tested, replace(PUBLISH, staging_path=""), UNPUBLISH)
    tested.check()


@pytest.mark.parametrize(
    ("mode", "is_shared", "status", "is_violation"),
    [
        ("SINGLE_NODE_WRITER", True, None, False),
        ("SINGLE_NODE_WRITER", False, Status.FAILED_PRECONDITION, False),
        ("SINGLE_NODE_READER_ONLY", False, Status.FAILED_PRECONDITION, False),
        ("SINGLE_NODE_SINGLE_WRITER", True, Status.FAILED_PRECONDITION, True),
        ("SINGLE_NODE_MULTI_WRITER", False, None, False),
        ("MULTI_NODE_MULTI_WRITER", False, None, False),
        ("MULTI_NODE_READER_ONLY", False, None, False),
    ],
)
def test_a_second_target_depends_on_the_access_mode(
    mode: str, is_shared: bool, status: Status | None, is_violation: bool
) -> None:
    tested = rules(shares_single_node=is_shared)
    asked = AskedCapability(mode)
    first = replace(PUBLISH, capability=asked)
    do(tested, replace(STAGE, capability=asked), first)
    second = replace(first, path=OTHER)
    if status is None:
        assert do(tested, second) == [True]
        assert tested.published() == {"vol": [TARGET, OTHER]}
    else:
        assert refuse(tested, second) is status
    assert bool(tested.violations) is is_violation


def test_a_volume_says_what_its_calls_must_carry() -> None:
    volume = StoredVolume(
        "vol",
        kinds=frozenset({"mount"}),
        access_modes=frozenset({"SINGLE_NODE_WRITER"}),
        volume_context={"pool": "fast"},
        publish_context={"device": "sdb"},
        secrets={calls.STAGE: {"user": "me"}},
    )
    tested = rules(volumes=[volume])
    right = replace(
        STAGE,
        volume_context={"pool": "fast", "csi.storage.k8s.io/pod.name": "web"},
        publish_context={"device": "sdb"},
        secrets={"user": "me"},
    )
    do(tested, right, UNSTAGE)
    tested.check()
    for wrong, rule in (
        (replace(right, secrets={}), CsiRule.SECRETS),
        (replace(right, volume_context={}), CsiRule.VOLUME_CONTEXT),
        (replace(right, publish_context={}), CsiRule.PUBLISH_CONTEXT),
    ):
        refuse(tested, wrong)
        assert tested.violations.pop().rule is rule
    for asked in (AskedCapability(is_block=True), AskedCapability("MULTI_NODE_MULTI_WRITER")):
        assert refuse(tested, replace(right, capability=asked)) is Status.FAILED_PRECONDITION
    tested.check()


def test_an_unknown_volume_is_not_found_and_no_violation() -> None:
    tested = rules(creates=False)
    assert refuse(tested, STAGE) is Status.NOT_FOUND
    do(tested, UNPUBLISH, UNSTAGE, EPHEMERAL)
    assert refuse(tested, replace(STATS, path="/else")) is Status.NOT_FOUND
    tested.check()


def test_a_second_call_for_a_volume_is_aborted() -> None:
    tested = rules()
    with tested.operation(STAGE):
        assert refuse(tested, STAGE) is Status.ABORTED
        do(tested, replace(STAGE, volume_id="other", staging_path="/2"))
    assert [violation.rule for violation in tested.violations] == [CsiRule.ONE_AT_A_TIME]


def test_a_call_that_was_given_up_still_aborts_others_but_breaks_no_rule() -> None:
    tested = rules()
    with tested.operation(STAGE) as operation:
        operation.abandon()
        assert tested.pending() == [operation]
        assert refuse(tested, STAGE) is Status.ABORTED
        with operation.effect():
            pass
    tested.check()
    # The caller was not told: it must stage again before it publishes.
    assert refuse(tested, PUBLISH) is Status.FAILED_PRECONDITION
    assert tested.violations.pop().rule is CsiRule.STAGED_FIRST
    assert do(tested, STAGE, PUBLISH) == [False, True]


def test_a_lost_reply_leaves_the_caller_without_knowledge() -> None:
    tested = rules()
    fail(tested, STAGE, effect=True, status=Status.UNAVAILABLE)
    assert refuse(tested, PUBLISH) is Status.FAILED_PRECONDITION
    tested.violations.clear()
    do(tested, STAGE, PUBLISH)
    fail(tested, UNPUBLISH, effect=True, status=Status.UNAVAILABLE)
    assert tested.published() == {"vol": [TARGET]}
    refuse(tested, UNSTAGE)
    assert tested.violations.pop().rule is CsiRule.UNPUBLISHED_FIRST
    do(tested, UNPUBLISH, UNSTAGE)
    assert (tested.staged(), tested.published()) == ({}, {})


@pytest.mark.parametrize(
    ("status", "is_left"), [(Status.INTERNAL, False), (Status.DEADLINE_EXCEEDED, True)]
)
def test_only_an_uncertain_error_leaves_something_to_undo(status: Status, is_left: bool) -> None:
    tested = rules()
    fail(tested, STAGE, effect=False, status=status)
    assert bool(tested.staged()) is is_left
    do(tested, STAGE)
    fail(tested, PUBLISH, effect=False, status=status)
    assert bool(tested.published()) is is_left
    do(tested, UNPUBLISH, UNSTAGE)
    assert (tested.staged(), tested.published()) == ({}, {})
    tested.check()


def test_a_failed_unpublish_leaves_the_target_published() -> None:
    tested = rules()
    do(tested, STAGE, PUBLISH)
    fail(tested, UNPUBLISH, effect=False, status=Status.INTERNAL)
    assert do(tested, PUBLISH) == [False]
    refuse(tested, UNSTAGE)
    assert [violation.rule for violation in tested.violations] == [CsiRule.UNPUBLISHED_FIRST]


def test_a_driver_that_starts_again_knows_what_it_had() -> None:
    tested = rules()
    flags = AskedCapability("MULTI_NODE_MULTI_WRITER", fs_type="ext4", mount_flags=("noatime",))
    stage, publish = replace(STAGE, capability=flags), replace(PUBLISH, capability=flags)
    do(tested, stage, publish)
    again = rules()
    again.from_json(json.loads(json.dumps(tested.to_json())))
    assert do(again, stage, publish) == [False, False]
    do(again, UNPUBLISH)
    assert again.published() == {}
    again.check()
