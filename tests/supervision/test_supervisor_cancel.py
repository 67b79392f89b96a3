"""Cancelled at any step whatever: nobody is left behind, and the order holds.

An instrument cancels after the n-th step of any task, for every n until the scenario ends
by itself first. The scenarios cover starting, running, back-off, group restarts, escalation
and a graceful stop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from kubelet_trio.supervision import (
    ChildSpec,
    ChildState,
    DynamicSupervisor,
    GaveUpError,
    Restart,
    RestartPolicy,
    Strategy,
    Supervisor,
    TreeNode,
)
from tests.supervision.actors import Actor


class CancelAfter(trio.abc.Instrument):
    """Cancels a scope after so many task steps."""

    def __init__(self, steps: int, scope: trio.CancelScope) -> None:
        self.left = steps
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self._scope.cancel()


class Scene:
    """A tree, what its children wrote, and the order in which they were declared."""

    def __init__(self, strategy: Strategy, *, crashes: bool = True) -> None:
        self.crashes = crashes
        self.journal: list[str] = []
        self.at_cancel = 0
        actors = {name: self._actor(name) for name in "abcdef"}
        self.pods = DynamicSupervisor("pods")
        tight = RestartPolicy(limit=1, base=1)
        inner = Supervisor(
            "inner",
            [
                ChildSpec("b", actors["b"].run),
                ChildSpec("c", actors["c"].run, policy=tight),
                ChildSpec("d", actors["d"].run),
            ],
            strategy=strategy,
        )
        self.top = Supervisor(
            "top",
            [
                ChildSpec("a", actors["a"].run),
                inner,
                self.pods,
                ChildSpec("e", actors["e"].run, Restart.TRANSIENT),
                ChildSpec("f", actors["f"].run, stop=actors["f"].finish, stop_grace=1),
            ],
        )
        for pod in (
            Actor("p", self.journal),
            Actor("q", self.journal, crash_after=[1.0] * 99 if crashes else []),
        ):
            self.pods.start_child(ChildSpec(pod.name, pod.run, Restart.TRANSIENT))

    def _actor(self, name: str) -> Actor:
        crash_after = {"c": (1.0, 1.0, 1.0), "e": (0.5,)}.get(name, ()) if self.crashes else ()
        crash_early = {"b": 1}.get(name, 0) if self.crashes else 0
        cleanup = {"d": 0.25, "a": 0.25}.get(name, 0.0)
        return Actor(
            name,
            self.journal,
            ready_after=0.1,
            crash_after=crash_after,
            crash_early=crash_early,
            cleanup=cleanup,
        )

    def check(self) -> None:
        """Check that everybody is gone, and that those who were cancelled went in reverse."""
        started = sorted(line.split()[0] for line in self.journal if line.endswith(" start"))
        ended = sorted(
            name
            for name, what in map(str.split, self.journal)
            if what in ("cancelled", "crashed", "returned")
        )
        assert started == ended
        late = [line.split() for line in self.journal[self.at_cancel :]]
        cancelled = [name for name, what in late if what == "cancelled"]
        # Where the inner supervisor was stopping its children already, they may go before
        # the outer ones; everywhere else the order is that of the whole tree.
        for family in ("aef", "abcd") if self.crashes else ("abcdef",):
            members = [name for name in cancelled if name in family]
            assert members == sorted(members, reverse=True)
        assert not any(_has_life(child) for child in self.top.tree().children)


def _has_life(node: TreeNode) -> bool:
    alive = (ChildState.STARTING, ChildState.RUNNING, ChildState.STOPPING)
    return node.state in alive or any(_has_life(child) for child in node.children)


async def live(scene: Scene) -> None:
    await trio.sleep(9)


async def live_and_stop(scene: Scene) -> None:
    await trio.sleep(2)
    scene.top.stop()
    await trio.sleep(5)


def run_scene(
    scene: Scene, script: Callable[[Scene], Awaitable[None]], *, steps: int = 0, until: float = 1e9
) -> int:
    """Run a scene and cancel it after so many steps or seconds; return the steps left."""
    bomb: CancelAfter | None = None

    async def main() -> None:
        nonlocal bomb
        with trio.move_on_after(until) as scope:
            bomb = CancelAfter(steps, scope)
            trio.lowlevel.add_instrument(bomb)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scene.top.run)
                nursery.start_soon(note_cancel)
                await script(scene)
                nursery.cancel_scope.cancel()

    async def note_cancel() -> None:
        try:
            await trio.sleep_forever()
        finally:
            scene.at_cancel = len(scene.journal)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    scene.check()
    assert bomb is not None
    return bomb.left


@pytest.mark.parametrize("crashes", [True, False])
@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("script", [live, live_and_stop])
def test_cancelled_after_any_step_the_order_holds_and_nobody_is_left(
    strategy: Strategy, script: Callable[[Scene], Awaitable[None]], crashes: bool
) -> None:
    steps, left = 0, 0
    while left <= 0:
        steps += 1
        left = run_scene(Scene(strategy, crashes=crashes), script, steps=steps)
    assert steps > 50


@given(until=st.floats(0, 8), strategy=st.sampled_from(Strategy))
@settings(max_examples=200)
def test_cancelled_at_any_time_the_order_holds_and_nobody_is_left(
    until: float, strategy: Strategy
) -> None:
    run_scene(Scene(strategy), live, until=until)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_tree_that_gives_up_leaves_nobody_either(strategy: Strategy) -> None:
    journal: list[str] = []
    never = RestartPolicy(limit=0)
    actors = [Actor(name, journal, crash_after=(1.0,) if name == "b" else ()) for name in "abc"]
    top = Supervisor(
        "top",
        [ChildSpec(actor.name, actor.run, policy=never) for actor in actors],
        strategy=strategy,
    )
    with pytest.raises(GaveUpError):
        trio.run(top.run, clock=MockClock(autojump_threshold=0))
    assert journal[-3:] == ["b crashed", "c cancelled", "a cancelled"]
