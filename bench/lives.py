"""`python -m bench.lives --against /other/checkout`: the agent's CPU for a pod's life, in turns.

A life is a static pod of one container that starts, runs and is removed again. Two agents, of this
checkout and of another one, live them in turns of `--pods` at once, on `FakeRuntime` in a process
of its own: without runc, and what else the machine does meets both. `--counts` counts instead what
a life takes of the loop (calls of functions, steps of tasks, hops to threads), which no other load
changes; `--profile DIR` keeps the profiles.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean, median

import click

from bench.contender import Meter
from bench.scale import Scale
from tests.harness import leftovers

ROOT = Path(__file__).parents[1]
_CHILD = Path(__file__).parent / "lives_child.py"
_WARM = 2  # crowds before anything is measured
_SETTLE = 1.0
_LEAST = 0.05  # of a life; what is less is not shown
# Not from the current directory, which is that of one checkout.
_PROGRAM = """import sys
sys.path.remove("")
sys.argv[0] = "kubelet-trio"
from kubelet_trio.cli import main
main()
"""
Figures = dict[str, float]


class Lives:
    """The agent of one checkout, and the lives that its pods have."""

    def __init__(
        self, base: Path, checkout: Path, cgroup: str, *, counts: bool, profile: Path | None
    ) -> None:
        self._told = base / "told.json" if counts else None
        program = (
            [sys.executable, "-P", str(_CHILD)] if counts else [sys.executable, "-c", _PROGRAM]
        )
        environment = {"PYTHONPATH": str(checkout), "LIVES": str(self._told)}
        if profile is not None:
            environment["LIVES_PROFILE"] = str(profile)
        self._scale = Scale(
            base,
            0,
            0,
            events=False,
            program=program,
            environment=environment,
            config={"cgroupsPerQOS": True, "cgroupRoot": cgroup, "cgroupDriver": "cgroupfs"},
        )
        self._meter = Meter(self._scale.pid)

    def wait_ready(self) -> None:
        """Wait until the agent has started, and is quiet."""
        self._scale.wait(0, settle=3.0)

    def crowd(self, pods: int) -> Figures:
        """Let that many pods live at once; return what each took."""
        before = self._now()
        self._scale.put(pods)
        self._scale.wait(pods, _SETTLE)
        self._scale.drop()
        self._scale.wait_gone(_SETTLE)
        return {name: (now - before.get(name, 0.0)) / pods for name, now in self._now().items()}

    def _now(self) -> Figures:
        if self._told is None:
            cpu, loop = self._meter.cpu(), _loop_cpu(self._scale.pid)
            return {"CPU ms": 1e3 * cpu, "… of the loop's thread": 1e3 * loop}
        self._told.unlink(missing_ok=True)
        os.kill(self._scale.pid, signal.SIGUSR2)
        deadline = time.monotonic() + 20
        while not self._told.exists():
            if time.monotonic() > deadline:
                raise click.ClickException(f"no counts from the agent: {self._scale.tail()}")
            time.sleep(0.05)
        return dict(json.loads(self._told.read_text()))

    def close(self) -> None:
        self._scale.close()


def _loop_cpu(pid: int) -> float:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def _opened(name: str, checkout: Path, *, counts: bool, profiles: Path | None) -> Iterator[Lives]:
    cgroup = f"/ktlives{os.getpid()}{name}"
    leftovers.make_cgroups(cgroup)
    profile = None if profiles is None else (profiles / f"{name}.pstats").absolute()
    try:
        with tempfile.TemporaryDirectory() as base:
            lives = Lives(Path(base), checkout, cgroup, counts=counts, profile=profile)
            try:
                lives.wait_ready()
                yield lives
            finally:
                lives.close()
    finally:
        leftovers.remove_cgroups(cgroup)


def measure(
    checkouts: Mapping[str, Path], pods: int, rounds: int, *, counts: bool, profiles: Path | None
) -> dict[str, list[Figures]]:
    """Return the figures of each round, by the checkout's name."""
    with ExitStack() as stack:
        agents = {
            name: stack.enter_context(_opened(name, place, counts=counts, profiles=profiles))
            for name, place in checkouts.items()
        }
        taken: dict[str, list[Figures]] = {name: [] for name in agents}
        for number in range(_WARM + rounds):
            # Whoever is first changes with each round.
            for name in sorted(agents, reverse=number % 2 == 0):
                found = agents[name].crowd(pods)
                if number >= _WARM:
                    taken[name].append(found)
        return taken


def table(taken: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield the lines of a table: means, and the median ratio within each round."""
    names = list(taken)
    yield "| a pod's life | " + " | ".join((*names, *["ratio"] * (len(names) - 1))) + " |"
    yield "| --- |" + " ---: |" * (2 * len(names) - 1)
    for figure in dict.fromkeys(figure for one in taken[names[0]] for figure in one):
        values = {name: [one.get(figure, 0.0) for one in taken[name]] for name in names}
        if max(map(fmean, values.values())) < _LEAST:
            continue
        row = [f"{fmean(values[name]):.1f}" for name in names]
        for other in names[1:]:
            both = zip(values[names[0]], values[other], strict=True)
            ratios = sorted(mine / its for mine, its in both if its) or [math.nan]
            row.append(f"{median(ratios):.3f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
        yield f"| {figure} | " + " | ".join(row) + " |"


@click.command()
@click.option("--pods", default=20, show_default=True, help="At once.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--against", type=click.Path(path_type=Path, exists=True), help="Another checkout.")
@click.option("--counts", is_flag=True, help="Count what the loop does, rather than CPU.")
@click.option("--profile", type=click.Path(path_type=Path), help="Keep profiles; with --counts.")
def main(pods: int, rounds: int, against: Path | None, counts: bool, profile: Path | None) -> None:
    """Measure what the agent does for a pod's life, on FakeRuntime over gRPC."""
    checkouts = {"this": ROOT} | ({"other": against.absolute()} if against is not None else {})
    if profile is not None:
        profile.mkdir(parents=True, exist_ok=True)
    taken = measure(checkouts, pods, rounds, counts=counts, profiles=profile)
    click.echo("\n".join(table(taken)))


if __name__ == "__main__":
    main()
