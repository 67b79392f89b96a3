"""`python -m bench.trace`: one pod's life as a waterfall, hop by hop.

Pods start, lose their container, and end, one at a time, on a real containerd. What the agent does
meanwhile is noted by `bench.traced`; a line is a function, a CRI call or blocking work in a thread,
with the median of its begin and of its length over all pods. The clock itself takes a few
microseconds a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

from bench.traced import SPANS
from tests.harness import (
    Agent,
    Containerd,
    CriClient,
    container,
    eventually,
    forever,
    live_containers,
    missing,
    pod,
)

PHASES = ("start", "restart", "removal")
_QUIET = 1.0  # seconds between two phases
_BAR = 40  # columns
# The calls of a start, a restart and a removal that no agent can leave out.
_NEEDED = {
    "start": ("run_podsandbox", "create_container", "start_container"),
    "restart": ("create_container", "start_container"),
    "removal": ("stop_container", "stop_podsandbox", "remove_podsandbox"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a waterfall; times in ms since the phase began."""

    begin: float
    length: float
    task: str
    name: str
    seen: int  # in how many of the pods' lives


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One phase of a pod's life, the median of several pods."""

    phase: str
    total: float  # ms until it was seen to be over
    needed: float  # ms of the calls that no agent can leave out
    lines: tuple[Line, ...]


Span = tuple[float, float, str, str]  # begin, end, task, name


def measure(count: int) -> list[Waterfall]:
    """Let `count` pods live, one after the other; return their phases."""
    with tempfile.TemporaryDirectory() as place, Containerd() as containerd:
        base = Path(place)
        spans, program = base / "spans.json", base / "traced"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bench.traced "$@"\n')
        program.chmod(0o755)
        agent = Agent(
            base / "agent",
            containerd,
            environment={SPANS: str(spans), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            program=program,
        )
        agent.start()
        try:
            with CriClient(containerd.socket) as cri:
                times = _lives(agent, cri, count)
            agent.stop()
        finally:
            agent.close()
        noted: list[Span] = [tuple(span) for span in json.loads(spans.read_text())]
    return [waterfall(phase, noted, times[phase]) for phase in PHASES]


def _lives(agent: Agent, cri: CriClient, count: int) -> Mapping[str, list[tuple[float, float]]]:
    """Return when each phase of each pod began, and when it was seen to be over."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    agent.start_watching()
    main = container("main", forever())  # ends on SIGTERM
    for number in range(count):
        name = f"traced-{number}"
        time.sleep(_QUIET)
        began = time.monotonic()
        agent.put(pod(name, main, terminationGracePeriodSeconds=1))
        agent.wait_ready(name)
        times["start"].append((began, time.monotonic()))
        time.sleep(_QUIET)
        old = live_containers(cri, f"{name}-node")["main"]
        pid = cri.container_pid(old)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)

        def is_back(name: str = name, old: str = old) -> bool:
            return live_containers(cri, f"{name}-node").get("main", old) != old

        eventually(is_back, every=0.005, what=f"{name} runs again")
        times["restart"].append((began, time.monotonic()))
        time.sleep(_QUIET)
        began = time.monotonic()
        agent.drop(name)
        agent.wait_gone(name)
        times["removal"].append((began, time.monotonic()))
    time.sleep(_QUIET)
    return times


def waterfall(phase: str, spans: Sequence[Span], times: Sequence[tuple[float, float]]) -> Waterfall:
    """Merge what was noted during one phase of each pod's life.

    The nth call of a function in one life is taken with the nth in the others. What fewer than
    half of the lives show is left out: the relist, for one, comes when it comes.
    """
    found: dict[tuple[str, str, int], list[Span]] = defaultdict(list)
    needed: list[float] = []
    for began, ended in times:
        number: Counter[tuple[str, str]] = Counter()
        calls = 0.0
        for begin, end, task, name in spans:
            if not began <= begin <= ended:
                continue
            task = task.partition("/default/")[0].partition(":/")[0]  # not by pod or path
            found[task, name, number[task, name]].append((begin - began, end - begin, task, name))
            number[task, name] += 1
            if name.removeprefix("CRI ") in _NEEDED[phase]:
                calls += end - begin
        needed.append(calls)
    lines = sorted(
        (
            Line(
                round(1e3 * median(span[0] for span in each), 2),
                round(1e3 * median(span[1] for span in each), 2),
                task,
                name,
                len(each),
            )
            for (task, name, _), each in found.items()
            if 2 * len(each) > len(times)
        ),
        key=lambda line: line.begin,
    )
    total = 1e3 * median(ended - began for began, ended in times)
    return Waterfall(phase, round(total, 1), round(1e3 * median(needed), 1), tuple(lines))


def text(found: Waterfall) -> Iterator[str]:
    """Yield a waterfall as lines of text."""
    yield (
        f"{found.phase}: {found.total:.1f} ms, of which {found.needed:.1f} are the calls "
        f"{', '.join(_NEEDED[found.phase])}"
    )
    scale = _BAR / max(found.total, 1e-9)
    for line in found.lines:
        start = min(round(line.begin * scale), _BAR - 1)
        bar = " " * start + "#" * max(1, min(round(line.length * scale), _BAR - start))
        task = line.task.removeprefix("kubelet/")
        yield f"{line.begin:8.1f} {line.length:7.1f} |{bar:<{_BAR}}| {line.name}  [{task}]"


def plot(found: Sequence[Waterfall], path: Path) -> None:
    """Draw all waterfalls into one picture."""
    from matplotlib import pyplot  # an extra

    height = sum(len(each.lines) for each in found) / 6 + 2
    figure, axes = pyplot.subplots(len(found), figsize=(12, height), squeeze=False)
    for each, (axis,) in zip(found, axes, strict=True):
        names = [line.name for line in each.lines]
        rows = range(len(names))
        axis.barh(
            rows,
            [max(line.length, each.total / 400) for line in each.lines],
            left=[line.begin for line in each.lines],
            color=["tab:red" if name.startswith("CRI") else "tab:blue" for name in names],
        )
        axis.set_yticks(rows, names, fontsize=6)
        axis.invert_yaxis()
        axis.set_xlabel("ms")
        axis.set_title(f"{each.phase}: {each.total:.0f} ms, needed calls {each.needed:.0f}")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


@click.command()
@click.option("--pods", default=10, show_default=True, help="How many pods' lives.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write it here.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Write a picture.")
def main(pods: int, json_file: Path | None, plot_file: Path | None) -> None:
    """Print the waterfall of a pod's start, of its container's restart and of its removal."""
    if lacks := missing():
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    found = measure(pods)
    for each in found:
        click.echo("\n".join(text(each)) + "\n")
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    if plot_file is not None:
        plot(found, plot_file)


if __name__ == "__main__":
    main()
