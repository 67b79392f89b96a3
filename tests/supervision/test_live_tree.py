"""What the tree shows, declared and alive, and how it is drawn."""

from __future__ import annotations

import msgspec
import trio
from trio.testing import MockClock

from kubelet_trio.supervision import (
    ChildSpec,
    ChildState,
    DeclaredNode,
    DynamicSupervisor,
    Strategy,
    Supervisor,
    TreeNode,
    render_tree,
)
from tests.supervision.actors import Actor, node, running, settle, specs


async def test_the_tree_shows_state_restarts_error_and_age(autojump_clock: MockClock) -> None:
    a = Actor("a", [], crash_after=[4])
    b = Actor("b", [], crash_after=[0] * 5)
    inner = Supervisor("inner", specs(b))
    top = Supervisor("top", [*specs(a), inner])
    async with running(top):
        await settle(20)
        expected = TreeNode(
            "top",
            ChildState.RUNNING,
            age=20,
            children=(
                TreeNode("a", ChildState.RUNNING, 1, "ValueError: a broke", 15.5),
                TreeNode(
                    "inner",
                    ChildState.RUNNING,
                    age=20,
                    children=(TreeNode("b", ChildState.RUNNING, 5, "ValueError: b broke", 4.5),),
                ),
            ),
        )
        assert top.tree() == expected


async def test_every_state_of_a_start_shows(autojump_clock: MockClock) -> None:
    slow = Actor("slow", [], ready_after=5)
    top = Supervisor("top", specs(Actor("a", []), slow, Actor("later", [])))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(top.run)
        await settle(1)
        tree = top.tree()
        assert tree.state is ChildState.STARTING
        assert [child.state for child in tree.children] == [
            ChildState.RUNNING,
            ChildState.STARTING,
            ChildState.WAITING,
        ]
        slow.crash()
        await settle(4)
        assert node(top.tree(), "slow").state is ChildState.BACKOFF
        assert node(top.tree(), "slow").age == 0
        nursery.cancel_scope.cancel()
    assert {child.state for child in top.tree().children} == {ChildState.STOPPED}


def test_a_tree_that_never_ran_can_be_seen_outside_of_trio() -> None:
    top = Supervisor("top", [*specs(Actor("a", [])), DynamicSupervisor("pods")])
    assert top.tree() == TreeNode(
        "top",
        ChildState.STOPPED,
        children=(TreeNode("a", ChildState.WAITING), TreeNode("pods", ChildState.WAITING)),
    )


def test_the_declared_tree_needs_no_run() -> None:
    top = Supervisor(
        "top",
        [
            *specs(Actor("a", [])),
            Supervisor("node", specs(Actor("b", [])), strategy=Strategy.REST_FOR_ONE),
            DynamicSupervisor("pods"),
        ],
    )
    assert top.declared() == DeclaredNode(
        "top",
        "one_for_one",
        (
            DeclaredNode("a"),
            DeclaredNode("node", "rest_for_one", (DeclaredNode("b"),)),
            DeclaredNode("pods", "dynamic"),
        ),
    )


def test_a_tree_survives_json() -> None:
    tree = TreeNode("top", ChildState.RUNNING, 1, "e", 2.5, (TreeNode("a", ChildState.DONE),))
    assert msgspec.json.decode(msgspec.json.encode(tree), type=TreeNode) == tree


def test_a_tree_is_drawn_with_its_facts_in_columns() -> None:
    tree = TreeNode(
        "kubelet",
        ChildState.RUNNING,
        age=3700,
        children=(
            TreeNode(
                "runtime",
                ChildState.RUNNING,
                age=65,
                children=(
                    TreeNode("pleg", ChildState.BACKOFF, 2, "ValueError: no"),
                    TreeNode("health", ChildState.RUNNING, age=1),
                ),
            ),
            TreeNode("pods", ChildState.RUNNING, age=0),
        ),
    )
    assert render_tree(tree) == "\n".join(
        [
            "kubelet         running      61m",
            "├── runtime     running      65s",
            "│   ├── pleg    backoff       0s  restarts=2  last error: ValueError: no",
            "│   └── health  running       1s",
            "└── pods        running       0s",
        ]
    )


async def test_an_error_of_many_lines_shows_by_its_first(autojump_clock: MockClock) -> None:
    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        raise ValueError("first\nsecond")

    async def silent(*, task_status: trio.TaskStatus[None]) -> None:
        raise TimeoutError

    top = Supervisor("top", [ChildSpec("a", body)])
    bottom = Supervisor("bottom", [ChildSpec("b", silent)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(top.run)
        nursery.start_soon(bottom.run)
        await settle()
        assert node(top.tree(), "a").last_error == "ValueError: first"
        assert node(bottom.tree(), "b").last_error == "TimeoutError"
        nursery.cancel_scope.cancel()


async def test_a_child_says_a_word_of_itself_while_it_lives(autojump_clock: MockClock) -> None:
    words = ["healthzPort 127.0.0.1:10248: taken"]
    a = Actor("a", [], crash_after=[4])
    top = Supervisor("top", [ChildSpec("a", a.run, note=lambda: words[0])])
    async with running(top):
        assert render_tree(top.tree()).endswith("0s  healthzPort 127.0.0.1:10248: taken")
        words[0] = ""
        assert render_tree(top.tree()).endswith("0s")
        words[0] = "there"
        await settle(4.2)
        assert top.tree().children[0].state is ChildState.BACKOFF
        assert top.tree().children[0].note == ""
