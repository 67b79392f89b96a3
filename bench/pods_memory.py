"""`python -m bench.pods_memory`: what a pod adds to the agent's memory, and where it is.

The agent as a process on `FakeRuntime` behind a socket, as in `bench.scale`. First untraced: its
resident set, RSS and PSS, at rest and under each number of pods. Then under tracemalloc: the bytes
that a pod keeps, by room and by line, and its standing tasks. `--against DIR` alternates with the
agent of another checkout.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from bench.bars import Bar, bars
from bench.footprint import split
from bench.scale import Scale

ROOT = Path(__file__).parents[1]
_REST = 10.0  # seconds until the agent is looked at
_FRAMES = 8  # of an allocation: enough to reach the agent's own line
_COLOUR = "#3a7d44"

Told = dict[str, Any]


def measure(checkout: Path, counts: Sequence[int], frames: int = 0) -> list[Told]:
    """Return what the agent tells without pods, and under each number of them."""
    environment = {"PYTHONPATH": f"{checkout}:{ROOT}", "TRACED": str(frames)}
    found = []
    with tempfile.TemporaryDirectory() as place:
        scale = Scale(Path(place), 0, 0, child="bench.pods_child", environment=environment)
        try:
            scale.wait(0)
            scale.wait_started()
            for count in (0, *counts):
                scale.put(count)
                scale.wait(count, settle=_REST)
                found.append({"pods": count, **split(scale.pid)["all"], **scale.told()})
        finally:
            scale.close()
    return found


def _resident(taken: Mapping[str, Sequence[Told]]) -> Iterator[str]:
    counts = [told["pods"] for told in next(iter(taken.values()))]
    yield "| | " + " | ".join(f"{count} pods" for count in counts) + " | KB a pod |"
    yield "| --- |" + " ---: |" * (len(counts) + 1)
    for name, states in taken.items():
        for figure in ("Rss", "Pss"):
            shown = " | ".join(f"{told[figure]:.1f}" for told in states)
            each = _each(states, lambda told, figure=figure: 1000 * told[figure])
            yield f"| {name}, {figure.upper()} MB | {shown} | {each:.0f} |"


def _each(states: Sequence[Told], value: Any) -> float:
    """Return what each pod of the last step adds: what is made once is there before."""
    before, after = states[-2:]
    added: float = (value(after) - value(before)) / (after["pods"] - before["pods"])
    return added


def _added(states: Sequence[Told], what: str) -> dict[str, float]:
    """Return KB a pod, by name."""
    names = set(states[-1][what]) | set(states[-2][what])
    return {
        name: _each(states, lambda told, name=name: told[what].get(name, (0, 0))[0]) / 1000
        for name in names
    }


def by_room(lines: Mapping[str, float]) -> dict[str, float]:
    """Sum up what the agent's lines have kept, by room."""
    found: Counter[str] = Counter()
    for line, size in lines.items():
        parts = line.partition(":")[0].split("/")
        found[parts[1].removesuffix(".py") if len(parts) > 1 else line] += size  # type: ignore[assignment]
    return dict(found)


def _report(states: Sequence[Told], top: int) -> Iterator[str]:
    live = _each(states, lambda told: told.get("sum", 0)) / 1000
    tasks = _each(states, lambda told: sum(told["tasks"].values()))
    yield f"A pod keeps {live:.1f} KB of Python's memory, and {tasks:.2f} tasks."
    yield ""
    for title, sizes in (
        ("room", by_room(_added(states, "rooms"))),
        ("line of the agent", _added(states, "rooms")),
        ("line that allocates", _added(states, "lines")),
        ("type", _added(states, "types")),
    ):
        yield f"| {title} | KB a pod |\n| --- | ---: |"
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:top]:
            yield f"| `{name}` | {size:.2f} |"
        yield ""


def _svg(states: Sequence[Told]) -> str:
    rooms = sorted(by_room(_added(states, "rooms")).items(), key=lambda item: -item[1])
    drawn = [Bar(name, [(size, _COLOUR)]) for name, size in rooms if size >= 0.1]
    return bars("What a pod keeps of an agent's memory (KB, tracemalloc)", drawn)


@click.command()
@click.option("--pods", default="30,80", show_default=True, help="Numbers, rising.")
@click.option("--traced", default="20,60", show_default=True, help="The same under tracemalloc.")
@click.option("--against", type=click.Path(path_type=Path, exists=True), help="Another checkout.")
@click.option("--rounds", default=1, show_default=True, help="Of the untraced; the last is shown.")
@click.option("--top", default=15, show_default=True, help="Lines and types.")
@click.option("--plots", "plot_dir", type=click.Path(path_type=Path), help="Write an SVG here.")
def main(
    pods: str, traced: str, against: Path | None, rounds: int, top: int, plot_dir: Path | None
) -> None:
    """Measure what a pod adds to the agent's memory."""
    counts, few = (list(map(int, each.split(","))) for each in (pods, traced))
    if any(a >= b for each in (counts, few) for a, b in pairwise(each)) or len(few) < 2:
        raise click.BadParameter("numbers of pods rise, and --traced has two")
    checkouts = {"other": against.absolute()} if against is not None else {}
    for _ in range(rounds):
        taken = {
            name: measure(checkout, counts)
            for name, checkout in {**checkouts, "this": ROOT}.items()
        }
        click.echo("\n".join(_resident(taken)) + "\n")
    states = measure(ROOT, few, _FRAMES)
    click.echo("\n".join(_report(states, top)))
    if plot_dir is not None:
        (plot_dir / "memory-pods.svg").write_text(_svg(states))


if __name__ == "__main__":
    main()
