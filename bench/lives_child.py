"""Runs `kubelet-trio` with a count of what its loop does, for `bench.lives`.

At each SIGUSR2 it writes to $LIVES what it has counted since it began, as JSON; where
$LIVES_PROFILE is set, the profile of the loop's thread, goes there.
"""

from __future__ import annotations

import cProfile
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from typing import Any

import trio


class Counted(trio.abc.Instrument):
    """Counts the loop's turns and its tasks' steps."""

    def __init__(self) -> None:
        self.is_begun = False
        self.turns = self.steps = 0
        self.hops: Counter[str] = Counter()  # calls in threads, by what they are
        self.ms: dict[str, float] = defaultdict(float)  # of CPU in them

    def after_io_wait(self, timeout: float) -> None:
        self.turns += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


def _main() -> None:
    from kubelet_trio.cli import main

    counted, profile = Counted(), cProfile.Profile(time.thread_time)
    run_loop, start_thread = trio.run, trio.lowlevel.start_thread_soon

    def tell(_number: int, _frame: object) -> None:
        profile.disable()
        if not counted.is_begun:  # what a start takes is not of the pods
            counted.is_begun = True
            profile.clear()
        found: dict[str, float] = {
            "calls of functions": sum(entry.callcount for entry in profile.getstats()),
            "steps of tasks": counted.steps,
            "turns of the loop": counted.turns,
            "hops to threads": counted.hops.total(),
        }
        found |= {f"CPU ms, {name}": took for name, took in counted.ms.items()}
        found |= {f"hops, {name}": count for name, count in counted.hops.items()}
        if "LIVES_PROFILE" in os.environ:
            profile.dump_stats(os.environ["LIVES_PROFILE"])
        with open(os.environ["LIVES"] + ".new", "w") as file:
            json.dump(found, file)
        os.rename(os.environ["LIVES"] + ".new", os.environ["LIVES"])
        profile.enable()

    def run_counted(*args: Any, **kwargs: Any) -> Any:
        profile.enable()
        return run_loop(*args, **kwargs, instruments=[counted])

    def start_counted(fn: Any, deliver: Any, *args: Any) -> None:
        name = getattr(getattr(deliver, "__self__", None), "name", "of Trio")
        counted.hops[name] += 1

        def measured() -> Any:
            began = time.thread_time()
            try:
                return fn()
            finally:
                counted.ms[name] += 1e3 * (time.thread_time() - began)

        start_thread(measured, deliver, *args)

    signal.signal(signal.SIGUSR2, tell)
    trio.run = run_counted  # type: ignore[assignment]
    trio.lowlevel.start_thread_soon = start_counted  # type: ignore[assignment]
    sys.argv[0] = "kubelet-trio"
    main()


_main()
