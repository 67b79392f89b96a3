"""`python -m bench [--peer /path/to/kubelet]`: root, and what the containerd suite needs."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from bench.contender import Contender, GoKubelet, Ours
from bench.install import install
from bench.loads import LOADS, Bench, to_floor
from bench.report import Round, machine, plots, rows, table
from bench.runtime import Runtime
from tests.harness import Containerd, CriClient, missing

Make = Callable[[Path, Containerd], Contender]


@click.command()
@click.option(
    "--peer", type=click.Path(path_type=Path, exists=True), help="A Go kubelet to measure beside."
)
@click.option("--rounds", default=3, show_default=True, help="Each contender once a round.")
@click.option("--loads", default=",".join(LOADS), show_default=True, help="Which, by comma.")
@click.option("--idle", default=60.0, show_default=True, help="Seconds to watch it do nothing.")
@click.option("--scale", default=1.0, show_default=True, help="Of the pods' numbers, for a trial.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write results here.")
@click.option("--plots", "plot_dir", type=click.Path(path_type=Path), help="Write PNGs here.")
def main(
    peer: Path | None,
    rounds: int,
    loads: str,
    idle: float,
    scale: float,
    json_file: Path | None,
    plot_dir: Path | None,
) -> None:
    """Run the same loads on this agent and on a peer, in turn, on one private containerd.

    With --quick (see its --help): in three minutes what got worse since the committed baseline, by
    ratios to the floor. `python -m bench history` draws the figures of all versions.
    """
    if lacks := missing():
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    chosen = loads.split(",")
    if unknown := [load for load in chosen if load not in LOADS]:
        there = ", ".join(LOADS)
        raise click.BadParameter(f"no such load: {', '.join(unknown)} (there are: {there})")
    if plot_dir is not None and find_spec("matplotlib") is None:
        raise click.ClickException("--plots needs matplotlib: pip install -e .[bench]")
    described = machine()
    with tempfile.TemporaryDirectory() as place:
        ours = partial(Ours, install(Path(place) / "venv"))
        makers: list[Make] = [ours, partial(GoKubelet, peer.absolute())] if peer else [ours]
        taken: list[dict[str, dict[str, float]]] = []
        for number in range(rounds):
            # Whoever comes second finds a warm page cache: they take turns.
            order = makers if number % 2 == 0 else list(reversed(makers))
            taken.append({})
            for make in order:
                for name, figures in _turn(make, chosen, idle, scale):
                    taken[-1][name] = dict(figures)
                    _write(json_file, described, taken)
            click.echo(f"round {number + 1} of {rounds} is done", err=True)
    names = [name for turn in taken for name in turn]
    theirs = next((name for name in names if name != Ours.name), None)
    merged = rows(taken, Ours.name, theirs)
    click.echo("\n".join(f"- {name}: {value}" for name, value in described.items()))
    click.echo()
    click.echo("\n".join(table(merged, Ours.name, theirs)))
    if plot_dir is not None and theirs is not None:
        click.echo(f"\n{plots(merged, Ours.name, theirs, plot_dir)}")


def _turn(
    make: Make, loads: list[str], idle: float, scale: float
) -> Iterator[tuple[str, dict[str, float]]]:
    """Run the loads on one contender, on a containerd of its own.

    Yields its name and the figures so far after each, so that what breaks later loses nothing.
    """
    with tempfile.TemporaryDirectory() as base, Containerd(metrics=True) as containerd:
        contender = make(Path(base) / "agent", containerd)
        try:
            with CriClient(containerd.socket) as cri:
                contender.start()
                bench = Bench(contender, Runtime(containerd, cri), idle, scale)
                for load in loads:
                    click.echo(f"{contender.name}: {load}", err=True)
                    LOADS[load](bench)
                    bench.results.update(to_floor(bench.results))
                    yield contender.name, bench.results
        finally:
            contender.close()


def _write(path: Path | None, described: dict[str, str], taken: Sequence[Round]) -> None:
    if path is not None:
        path.write_text(json.dumps({"machine": described, "rounds": taken}, indent=1) + "\n")


if __name__ == "__main__":
    if "--quick" in sys.argv:
        from bench.quick import main as quick

        quick([argument for argument in sys.argv[1:] if argument != "--quick"])
    elif sys.argv[1:2] == ["history"]:
        from bench.history import main as history

        history(sys.argv[2:])
    main()
