"""`python -m bench.held FILE COMMAND...`: `kubelet-trio COMMAND...`, measuring what holds its loop.

At each SIGUSR2 it writes to FILE what it has measured since the last one, as JSON: the percentiles
of the CPU time of the loop's thread between two looks for I/O, and the tasks with the longest
steps. CPU, because on a busy machine the time by the wall clock says more of the others.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import trio

_MOST = 12  # tasks that are told of
_PERCENTILES = (50, 99, 99.9)


class Held(trio.abc.Instrument):
    """Measures turns of the loop, steps of tasks, and passes of the garbage collector."""

    def __init__(self) -> None:
        self.turns: list[float] = []  # ms
        self.steps: dict[str, float] = {}  # ms of the longest, by task
        self.collections: list[float] = []
        self._turn: list[tuple[float, str]] = []  # ms of each step, and its task
        self.longest_turn: list[tuple[float, str]] = []
        self._most = 0.0
        self._turn_began = self._step_began = self._collection_began = 0.0

    def after_io_wait(self, timeout: float) -> None:
        self._turn = []
        self._turn_began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        if self._turn_began:
            took = 1e3 * (time.thread_time() - self._turn_began)
            if took > self._most:
                self._most, self.longest_turn = took, self._turn
            self.turns.append(took)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step_began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = 1e3 * (time.thread_time() - self._step_began)
        self._turn.append((took, task.name.partition("@")[0].partition("/default/")[0]))
        if took > 3 and took > self.steps.get(task.name, 0):
            self.steps[task.name] = took

    def collected(self, phase: str, _about: object) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self.collections.append(1e3 * (time.thread_time() - self._collection_began))

    def take(self) -> dict[str, Any]:
        """Return what was measured, and begin anew."""
        turns = sorted(self.turns) or [0.0]
        held = {
            f"p{p:g}": turns[min(len(turns) - 1, int(len(turns) * p / 100))] for p in _PERCENTILES
        }
        held["longest"] = turns[-1]
        held["longest collection"] = max(self.collections, default=0.0)
        longest = sorted(self.steps.items(), key=lambda item: -item[1])[:_MOST]
        by_task: dict[str, tuple[float, int]] = {}
        for took, name in self.longest_turn:
            total, steps = by_task.get(name, (0.0, 0))
            by_task[name] = total + took, steps + 1
        turn = sorted(by_task.items(), key=lambda item: -item[1][0])[:_MOST]
        told = {"turns": len(turns), "held": held, "longest": longest, "turn": turn}
        self.turns, self.steps, self.collections = [], {}, []
        self._most, self.longest_turn = 0.0, []
        return told


def main() -> None:
    """Run the program."""
    from kubelet_trio.cli import main as run

    out, held, run_loop = Path(sys.argv[1]), Held(), trio.run

    def tell(_number: int, _frame: object) -> None:
        written = out.with_suffix(".tmp")
        written.write_text(json.dumps(held.take()))
        written.rename(out)

    def run_measured(*args: Any, **kwargs: Any) -> Any:
        return run_loop(*args, **kwargs, instruments=[held])

    signal.signal(signal.SIGUSR2, tell)
    gc.callbacks.append(held.collected)
    trio.run = run_measured  # type: ignore[assignment]
    sys.argv = ["kubelet-trio", *sys.argv[2:]]
    run()


if __name__ == "__main__":
    main()
