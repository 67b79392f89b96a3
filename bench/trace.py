"""`python -m bench.trace`: one pod's life as a waterfall, hop by hop.

Pods start, lose their container, and end, one at a time, on a real containerd. What the agent does
meanwhile is noted by `bench.traced`; a line is a function, a CRI call or blocking work in a thread,
with the median of its begin and of its length over all pods. The clock itself takes a few
microseconds a line. Below it stand the calls that no agent can leave out, with what lies before
each of them and how long the same call took at the floor: bare calls on a containerd of their own,
which take turns with the pods.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import click

from bench.bare import Floor
from bench.runtime import Runtime
from bench.traced import SPANS
from kubelet_trio.cri import v1
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

T = TypeVar("T")

PHASES = ("start", "restart", "removal")
_QUIET = 1.0  # seconds between two phases
_BAR = 40  # columns
_AFTER = "until it was seen"  # what lies after the last call
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
class Step:
    """One call that no agent can leave out: medians in ms."""

    name: str
    gap: float  # between it and the one before, or the begin of the phase
    took: float
    floor: float  # how long it took at the floor; 0: not measured


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One phase of a pod's life, the median of several pods."""

    phase: str
    total: float  # ms until it was seen to be over
    needed: float  # ms of the calls that no agent can leave out
    lines: tuple[Line, ...]
    steps: tuple[Step, ...] = ()

    @property
    def gaps(self) -> float:
        """The ms that it was waited for the agent: all that is no call."""
        return sum(step.gap for step in self.steps)


Span = tuple[float, float, str, str]  # begin, end, task, name


def measure(count: int) -> list[Waterfall]:
    """Let `count` pods live, one after the other; return their phases."""
    with (
        tempfile.TemporaryDirectory() as place,
        Containerd() as containerd,
        Containerd() as other,
        ThreadPoolExecutor(1) as thread,
        _TimedClient(other.socket) as bare,
    ):
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
                floor = Floor(Runtime(other, bare), base / "bare", thread)
                times = _lives(agent, cri, count, partial(_bare_life, floor))
            agent.stop()
        finally:
            agent.close()
        noted: list[Span] = [tuple(span) for span in json.loads(spans.read_text())]
    return [waterfall(phase, noted, times[phase], bare.took) for phase in PHASES]


class _TimedClient(CriClient):
    """A client that notes how long the calls of the floor take, in s."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self.took: dict[str, list[float]] = defaultdict(list)

    def run_sandbox(self, config: v1.PodSandboxConfig) -> str:
        return self._timed("run_podsandbox", partial(super().run_sandbox, config))

    def create_container(
        self, sandbox: str, config: v1.ContainerConfig, sandbox_config: v1.PodSandboxConfig
    ) -> str:
        create = super().create_container
        return self._timed("create_container", partial(create, sandbox, config, sandbox_config))

    def start_container(self, container: str) -> None:
        self._timed("start_container", partial(super().start_container, container))

    def stop_container(self, container: str, grace: int) -> None:
        self._timed("stop_container", partial(super().stop_container, container, grace))

    def stop_sandbox(self, sandbox: str) -> None:
        self._timed("stop_podsandbox", partial(super().stop_sandbox, sandbox))

    def remove_stopped_sandbox(self, sandbox: str) -> None:
        self._timed("remove_podsandbox", partial(super().remove_stopped_sandbox, sandbox))

    def _timed(self, name: str, call: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return call()
        finally:
            self.took[name].append(time.monotonic() - began)


def _bare_life(floor: Floor) -> None:
    """Let one pod live by bare calls; its container is not replaced."""
    floor.start(1)
    time.sleep(_QUIET)
    floor.end()


def _lives(
    agent: Agent, cri: CriClient, count: int, between: Callable[[], None]
) -> Mapping[str, list[tuple[float, float]]]:
    """Return when each phase of each pod began, and when it was seen to be over.

    `between` is called after each pod.
    """
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
        between()
    time.sleep(_QUIET)
    return times


def waterfall(
    phase: str,
    spans: Sequence[Span],
    times: Sequence[tuple[float, float]],
    floor: Mapping[str, Sequence[float]] | None = None,
) -> Waterfall:
    """Merge what was noted during one phase of each pod's life.

    The nth call of a function in one life is taken with the nth in the others. What fewer than
    half of the lives show is left out: the relist, for one, comes when it comes. `floor`: how long
    the calls took there, in s.
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
    return Waterfall(
        phase,
        round(total, 1),
        round(1e3 * median(needed), 1),
        tuple(lines),
        tuple(_steps(phase, spans, times, floor or {})),
    )


def _steps(
    phase: str,
    spans: Sequence[Span],
    times: Sequence[tuple[float, float]],
    floor: Mapping[str, Sequence[float]],
) -> Iterator[Step]:
    """Yield the calls that no agent can leave out, and what lies before each of them and after.

    A life counts only if it made each of them once.
    """
    gaps: dict[str, list[float]] = defaultdict(list)
    took: dict[str, list[float]] = defaultdict(list)
    for began, ended in times:
        calls = [
            (name.removeprefix("CRI "), begin, end)
            for begin, end, _, name in sorted(spans)
            if began <= begin <= ended and name.removeprefix("CRI ") in _NEEDED[phase]
        ]
        if [name for name, _, _ in calls] != list(_NEEDED[phase]):
            continue
        before = began
        for name, begin, end in (*calls, (_AFTER, ended, ended)):
            gaps[name].append(begin - before)
            took[name].append(end - begin)
            before = end
    for name, found in gaps.items():
        at_floor = median(floor.get(name) or (0.0,))
        figures = (round(1e3 * each, 2) for each in (median(found), median(took[name]), at_floor))
        yield Step(name, *figures)


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
    yield f"  before    call   floor, ms of the calls; {found.gaps:.1f} ms lie between them"
    for step in found.steps:
        yield f"{step.gap:8.1f} {step.took:7.1f} {step.floor:7.1f}  {step.name}"


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
