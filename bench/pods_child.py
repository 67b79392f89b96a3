"""`python -m bench.pods_child FILE COMMAND...`: `kubelet-trio COMMAND...`, telling its memory.

At each SIGUSR2 it writes to FILE, as JSON, what it has by line, by type and by task. With
$TRACED a number, tracemalloc notes that many frames of each allocation; without, only its resident
set, which tracing would change, says something.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from types import FrameType

_OWN = "kubelet_trio/"
Sizes = dict[str, tuple[int, int]]


def _by_line() -> tuple[Sizes, Sizes]:
    """Return bytes and blocks by the line that allocates, and by ours that leads there."""
    lines: dict[str, list[int]] = {}
    rooms: dict[str, list[int]] = {}
    for one in tracemalloc.take_snapshot().statistics("traceback"):
        frames = [f"{_short(frame.filename)}:{frame.lineno}" for frame in one.traceback]
        own = next((frame for frame in reversed(frames) if _OWN in frame), "others")
        for names, name in ((lines, frames[-1]), (rooms, own)):
            sums = names.setdefault(name, [0, 0])
            sums[0] += one.size
            sums[1] += one.count
    return _sums(lines), _sums(rooms)


def _sums(found: dict[str, list[int]]) -> Sizes:
    return {name: (size, count) for name, (size, count) in found.items()}


def _short(path: str) -> str:
    at = path.rfind(_OWN)
    return path[at:] if at >= 0 else "/".join(path.split("/")[-3:])


def _tasks() -> dict[str, int]:
    import trio

    root = trio.lowlevel.current_root_task()
    found: Counter[str] = Counter()
    left = [root] if root is not None else []
    while left:
        task = left.pop()
        found[_general(task.name)] += 1
        for nursery in task.child_nurseries:
            left.extend(nursery.child_tasks)
    return dict(found)


def _general(name: str) -> str:
    """Return a task's name without the pod's."""
    parts = name.split("/")
    return "/".join("*" if "pod-" in p or p == "default" else p for p in parts)


def _types() -> Sizes:
    found: dict[str, list[int]] = {}
    for one in gc.get_objects():  # what is frozen, everything from before the pods, is not there
        kind = type(one)
        sums = found.setdefault(f"{kind.__module__}.{kind.__qualname__}", [0, 0])
        sums[0] += sys.getsizeof(one)
        sums[1] += 1
    return _sums(found)


def main() -> None:
    """Run the program."""
    out, traced = sys.argv[1], int(os.environ.get("TRACED", "0"))

    def tell(_number: int, _frame: FrameType | None) -> None:
        gc.collect()
        told: dict[str, object] = {"tasks": _tasks()}
        if traced and not tracemalloc.is_tracing():
            tracemalloc.start(traced)  # what was there before the pods does not matter
        elif traced:
            told["sum"] = tracemalloc.get_traced_memory()[0]
            told["lines"], told["rooms"] = _by_line()
            told["types"] = _types()
        with open(f"{out}.new", "w") as file:
            json.dump(told, file)
        os.rename(f"{out}.new", out)

    signal.signal(signal.SIGUSR2, tell)
    sys.argv = ["kubelet-trio", *sys.argv[2:]]
    from kubelet_trio.cli import main as run

    run()


if __name__ == "__main__":
    main()
