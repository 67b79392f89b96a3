"""`python -m bench.held FILE COMMAND...`: `kubelet-trio COMMAND...`, measuring what holds its loop.

At each SIGUSR2 it writes to FILE what it has measured since the last one, as JSON: the percentiles
of the CPU time of the loop's thread between two looks for I/O, the tasks with the longest steps,
and what the longest turns consisted of. CPU, because on a busy machine the time by the wall clock
says more of the others. A collection of garbage is told by itself: it hits whoever runs.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

_MOST = 12  # tasks that are told of
_TURNS = 4  # of the longest, that are told of
_COLLECTION = "garbage collection"

Step = tuple[float, str]  # ms, and the task
_PERCENTILES = (50, 99, 99.9)


class Held(trio.abc.Instrument):
    """Measures turns of the loop, steps of tasks, and passes of the garbage collector."""

    def __init__(self) -> None:
        self.turns: list[float] = []  # ms
        self.steps: dict[str, float] = {}  # ms of the longest, by task
        self.collections: list[float] = []
        self._turn: list[Step] = []
        self.longest_turns: list[tuple[float, list[Step]]] = []
        self._turn_began = self._step_began = self._collection_began = 0.0
        self._thread = threading.get_ident()
        self._collected = 0.0  # ms of this step

    def after_io_wait(self, timeout: float) -> None:
        self._turn = []
        self._turn_began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        if self._turn_began:
            took = 1e3 * (time.thread_time() - self._turn_began)
            self.turns.append(took)
            if len(self.longest_turns) < _TURNS or took > self.longest_turns[-1][0]:
                found = [*self.longest_turns, (took, self._turn)]
                self.longest_turns = sorted(found, key=lambda each: -each[0])[:_TURNS]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._collected = 0.0
        self._step_began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = 1e3 * (time.thread_time() - self._step_began) - self._collected
        self._turn.append((took, _general(task.name)))
        if self._collected:
            self._turn.append((self._collected, _COLLECTION))
        if took > 3 and took > self.steps.get(task.name, 0):
            self.steps[task.name] = took

    def collected(self, phase: str, _about: object) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            took = 1e3 * (time.thread_time() - self._collection_began)
            self.collections.append(took)
            if threading.get_ident() == self._thread:
                self._collected += took

    def take(self) -> dict[str, Any]:
        """Return what was measured, and begin anew."""
        turns = sorted(self.turns) or [0.0]
        held = {
            f"p{p:g}": turns[min(len(turns) - 1, int(len(turns) * p / 100))] for p in _PERCENTILES
        }
        held["longest"] = turns[-1]
        held["longest collection"] = max(self.collections, default=0.0)
        longest = sorted(self.steps.items(), key=lambda item: -item[1])[:_MOST]
        told = {
            "turns": len(turns),
            "held": held,
            "longest": longest,
            "longest turns": [(took, _by_task(steps)) for took, steps in self.longest_turns],
        }
        self.turns, self.steps, self.collections, self.longest_turns = [], {}, [], []
        return told


def _general(name: str) -> str:
    """Return a task's name without the pod's."""
    name = name.partition("@")[0].partition("/default/")[0]
    return "inspect" if name.startswith("inspect ") else name


def _by_task(steps: Sequence[Step]) -> list[tuple[str, tuple[float, int]]]:
    """Return ms and number of the steps of each task, the longest first."""
    by_task: dict[str, tuple[float, int]] = {}
    for took, name in steps:
        total, number = by_task.get(name, (0.0, 0))
        by_task[name] = total + took, number + 1
    return sorted(by_task.items(), key=lambda item: -item[1][0])[:_MOST]


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
