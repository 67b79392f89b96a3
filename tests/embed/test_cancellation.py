"""A program that is cancelled, anywhere: its pods go in order, in bounded time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.embed import Kubelet
from kubelet_trio.testing import FaultKind
from tests.embed.programs import GRACE, Machine, Program, cancelled_at_every_step, pod


async def one_pod(machine: Machine) -> None:
    async with machine.opened() as kubelet:
        async with kubelet.run_pod(pod(image="slow-stop-1")) as running:
            await running.wait_ready()
            await running.exec(["true"])
            async for _ in running.logs():
                pass
            await trio.sleep(1)


async def two_pods_in_tasks_of_their_own(machine: Machine) -> None:
    async def run(kubelet: Kubelet, name: str) -> None:
        async with kubelet.run_pod(pod(name, "slow-stop-2")) as running:
            await running.wait_ready()
            await trio.sleep(1)

    async with machine.opened() as kubelet, trio.open_nursery() as nursery:
        nursery.start_soon(run, kubelet, "a")
        nursery.start_soon(run, kubelet, "b")


async def one_within_the_other(machine: Machine) -> None:
    async with machine.opened() as kubelet:
        async with kubelet.run_pod(pod("outer")) as outer:
            await outer.wait_ready()
            async with kubelet.run_pod(pod("inner", "stubborn")) as inner:
                await inner.wait_ready()


async def two_kubelets(machine: Machine) -> None:
    async with machine.opened("a") as a, machine.opened("b") as b:
        async with a.run_pod(pod()) as one, b.run_pod(pod()) as other:
            await one.wait_ready()
            await other.wait_ready()


async def a_resize(machine: Machine) -> None:
    container = {"name": "main", "image": "web", "imagePullPolicy": "IfNotPresent"}
    sized = pod(containers=[{**container, "resources": {"requests": {"cpu": "100m"}}}])
    async with machine.opened() as kubelet, kubelet.run_pod(sized) as running:
        await running.wait_ready()
        await running.resize({"main": {"requests": {"cpu": "200m"}}})


@pytest.mark.parametrize(
    ("program", "stride"),
    [
        (one_pod, 1),
        (two_pods_in_tasks_of_their_own, 7),
        (one_within_the_other, 7),
        (two_kubelets, 7),
        (a_resize, 3),
    ],
    ids=lambda program: getattr(program, "__name__", ""),
)
def test_a_program_cancelled_at_any_step_leaves_nothing(
    program: Program, stride: int, tmp_path: Path
) -> None:
    runs = cancelled_at_every_step(program, tmp_path, stride)
    assert len(runs) > 20
    for step, run in enumerate(runs, start=1):
        assert run.machine.leftovers() == [], step
        # A program's own command is killed with it: `exec` promises that.
        cut = [v for v in run.machine.runtime.violations if "ExecSync" not in v]
        assert cut == [], step
        assert run.took <= 2 * (GRACE + 10), step  # at most two pods, one after the other
    assert not all(run.completed for run in runs)


async def kept(machine: Machine) -> None:
    async with machine.opened() as kubelet:
        await kubelet.apply([pod("a"), pod("b")])
        async with kubelet.run_pod(pod("c"), keep=True) as running:
            await running.wait_ready()
        await kubelet.delete("b")


def test_a_program_cancelled_at_any_step_stops_nothing_that_is_kept(tmp_path: Path) -> None:
    for step, run in enumerate(cancelled_at_every_step(kept, tmp_path, 3), start=1):
        assert run.machine.runtime.violations == [], step
        stops = run.machine.runtime.calls_of("StopContainer", "StopPodSandbox")
        uids = {s.metadata.name: s.uid for s in run.machine.runtime.sandboxes.values()}
        for name in ("a", "c"):
            assert not [stop for stop in stops if stop.target == uids.get(name, "-")], step


async def test_a_runtime_that_hangs_holds_a_cancelled_program_no_longer_than_the_bound(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    with trio.CancelScope() as scope:
        async with machine.opened() as kubelet, kubelet.run_pod(pod()) as running:
            await running.wait_ready()
            machine.runtime.faults.add(FaultKind.HANG, "StopContainer")
            cancelled_at = trio.current_time()
            scope.cancel()
    # The pod's part is its grace and 10 s; the agent's own end comes after it.
    assert GRACE + 10 <= trio.current_time() - cancelled_at <= GRACE + 10 + 30
    assert machine.runtime.alive()


async def test_what_could_not_be_ended_in_time_is_ended_when_the_kubelet_opens_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    with trio.CancelScope() as scope:
        async with machine.opened() as kubelet, kubelet.run_pod(pod()) as running:
            await running.wait_ready()
            machine.runtime.faults.add(FaultKind.HANG, "StopContainer")
            scope.cancel()
    machine.runtime.faults.clear()
    async with machine.opened():
        await trio.sleep(30)
        assert machine.leftovers() == []


async def test_a_lone_exception_comes_out_as_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    raised = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012  # the whole block is meant
        async with machine.opened() as kubelet, kubelet.run_pod(pod()) as running:
            await running.wait_ready()
            raise raised
    assert caught.value is raised
    assert caught.value.__cause__ is None
    assert machine.leftovers() == []


async def test_a_group_of_the_program_comes_out_as_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    group = ExceptionGroup("mine", [ValueError(), KeyError()])
    with pytest.raises(ExceptionGroup) as caught:  # noqa: ASYNC401  # this very object
        async with Machine(tmp_path).opened() as kubelet, kubelet.run_pod(pod()):
            raise group
    assert caught.value is group


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, StopAsyncIteration])
async def test_other_exceptions_come_out_too(
    tmp_path: Path, autojump_clock: MockClock, raised: type[BaseException]
) -> None:
    machine = Machine(tmp_path)
    with pytest.raises(raised):  # noqa: PT012  # the whole block is meant
        async with machine.opened() as kubelet, kubelet.run_pod(pod()) as running:
            await running.wait_ready()
            raise raised
    assert machine.leftovers() == []


async def test_an_exception_beats_a_cancellation_that_comes_while_pods_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    with trio.CancelScope() as scope:
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012  # the whole block is meant
            async with machine.opened() as kubelet:
                async with kubelet.run_pod(pod(image="slow-stop-3")) as running:
                    await running.wait_ready()
                    scope.deadline = trio.current_time() + 1
                    raise ValueError("mine")
    assert machine.leftovers() == []


async def test_a_deadline_around_the_kubelet_takes_the_pods_down(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    with trio.move_on_after(10) as scope:
        async with machine.opened() as kubelet, kubelet.run_pod(pod()):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert machine.leftovers() == []


async def test_a_scope_left_open_ends_with_the_kubelet(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    async with machine.opened() as kubelet:
        scope = kubelet.run_pod(pod())
        running = await scope.__aenter__()
        await running.wait_ready()
    assert machine.leftovers() == []
    await scope.__aexit__(None, None, None)
    assert running.is_gone
