"""Programs that embed a kubelet on a fake runtime, and a way to cancel them at every step."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from trio.testing import MockClock

from kubelet_trio.embed import Kubelet, KubeletConfig, open_kubelet
from kubelet_trio.testing import FakeMounter, FakeRuntime
from kubelet_trio.testing.embedded import fake_world

GRACE = 5


def pod(name: str = "web", image: str = "web", **spec: object) -> dict[str, object]:
    """Return a pod of one container `main`."""
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent"}
    return {
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": GRACE, "containers": [container], **spec},
    }


@dataclass
class Machine:
    """What outlives a program: the runtime, the disk, the mounts."""

    base: Path
    runtime: FakeRuntime = field(
        default_factory=lambda: FakeRuntime(write_logs=True, status_lag=0.06)
    )
    mounter: FakeMounter = field(default_factory=FakeMounter)

    def config(self, name: str = "a") -> KubeletConfig:
        return KubeletConfig(root_dir=self.base / name, runtime=self.runtime, node_name="node")

    @asynccontextmanager
    async def opened(self, name: str = "a") -> AsyncIterator[Kubelet]:
        """Open a kubelet in a directory of its own."""
        config = self.config(name)
        world = fake_world(self.runtime, config, mounter=self.mounter)
        async with open_kubelet(config, world=world) as kubelet:
            yield kubelet

    def leftovers(self) -> list[str]:
        """Return what is left of any pod: on the runtime, on disk, mounted."""
        below = [self.base / root / "pods" for root in os.listdir(self.base)]
        below += [self.base / root / "logs" / "pods" for root in os.listdir(self.base)]
        found = [str(p) for d in below if d.is_dir() for p in d.iterdir()]
        return [*self.runtime.sandboxes, *found, *(m.path for m in self.mounter.mounts())]


Program = Callable[[Machine], Awaitable[None]]


@dataclass
class Run:
    """How a run went that was cancelled at one of its steps."""

    machine: Machine
    reached: bool = False  # whether there was such a step
    completed: bool = False
    took: float = 0.0  # seconds from the cancellation to the end


class _CancelAtStep(trio.abc.Instrument):
    """Cancels a scope when the n-th step of a run is about to be taken, by whichever task."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self._left, self._scope = step, scope
        self.cancelled_at: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()
            self.cancelled_at = trio.current_time()


def run_cancelled(program: Program, base: Path, step: int) -> Run:
    """Run a program in virtual time on a new machine, cancelled from outside at a step."""
    clock = MockClock(autojump_threshold=0)
    # On the clock itself, so that the runtime can be looked at after the run.
    runtime = FakeRuntime(write_logs=True, status_lag=0.06, now=clock.current_time)
    machine = Machine(base, runtime)
    run = Run(machine)

    async def main() -> None:
        with trio.CancelScope() as scope:
            watch = _CancelAtStep(step, scope)
            trio.lowlevel.add_instrument(watch)
            try:
                await program(machine)
                run.completed = True
            finally:
                trio.lowlevel.remove_instrument(watch)
        if watch.cancelled_at is not None:
            run.reached, run.took = True, trio.current_time() - watch.cancelled_at

    trio.run(main, clock=clock)
    return run


def cancelled_at_every_step(program: Program, base: Path, stride: int = 1) -> list[Run]:
    """Run a program once for each step that any task in it takes, cancelled at that step.

    Every checkpoint of the program is among them, in every state that the agent is in. With
    a `stride`, it is every so manyth step, a prime number so that no pattern is missed.
    """
    runs: list[Run] = []
    while not runs or runs[-1].reached:
        directory = base / str(len(runs))
        directory.mkdir()
        runs.append(run_cancelled(program, directory, stride * len(runs) + 1))
    return runs[:-1]
