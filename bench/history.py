"""`python -m bench history`: the figures of all versions as plots, for docs/performance.md.

`bench/history.jsonl` has a line for each measurement that was written down, oldest first: what was
measured, when, on which machine and beside what other work, and the figures of the agent, of the
floor and of a Go kubelet in the same run. `--update-baseline` of the quick bench adds one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from bench.figures import FIGURES, is_amount
from bench.svg import Line, Panel, draw

_REPO = Path(__file__).parents[1]
PATH = Path(__file__).with_name("history.jsonl")
PLOTS = _REPO / "docs" / "plots"
PAGE = _REPO / "docs" / "performance.md"
BEGIN, END = "<!-- python -m bench history -->", "<!-- end of what bench history writes -->"
_LEGEND = (
    "blue: this agent (hollow: a busy machine); grey: the floor in the same run; "
    "orange: a Go kubelet in the same run"
)


class HistoryError(Exception):
    """A line of the history cannot be read; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One measurement. Figures are by the keys of `TITLES`, in their units."""

    version: str
    revision: str
    date: str  # YYYY-MM-DD
    busy: bool  # whether the machine did other work
    conditions: str
    figures: Mapping[str, float]
    floor: Mapping[str, float] = field(default_factory=dict)
    peer: Mapping[str, float] = field(default_factory=dict)
    peer_name: str = ""

    @property
    def place(self) -> str:
        """Return what it is called below a plot."""
        return f"{self.date[5:]} {self.revision.rpartition(' ')[2]}"


TITLES: Mapping[str, str] = {
    "one.started": "One pod, file to started, s",
    "one.ready": "One pod, file to Ready, s",
    "crowd.ready": "30 pods Ready, s",
    "death": "Container killed to started again, s",
    "one.still": "One pod removed, nothing runs, s",
    "one.left": "One pod removed, nothing left, s",
    "crowd.still": "30 pods removed, nothing runs, s",
    "crowd.left": "30 pods removed, nothing left, s",
    "start.cpu": "Agent's CPU to start a pod (of 30), ms",
    "life.cpu": "Agent's CPU, a pod's life (of 30), ms",
    "life.runtime_cpu": "containerd's CPU, a pod's life, ms",
    "life.calls": "CRI calls, a pod's life",
    "rest.cpu": "Idle CPU, no pod, ms a minute",
    "crowd.cpu": "Idle CPU, 30 pods, ms a minute",
    "crowd.idle_calls": "CRI calls, 30 idle pods, a minute",
    "rest.rss": "RSS at rest, MB",
    "crowd.rss": "RSS under 30 pods, MB",
    "rest.pss": "PSS at rest, MB",
    "crowd.pss": "PSS under 30 pods, MB",
    "pod.pss": "PSS, a pod, KB",
    "modules": "Modules that the daemon imports",
    "cluster.bound": "Pod bound to Running seen, s",
    "cluster.started": "Container started to patch received, s",
    "cluster.killed": "Container killed to patch received, s",
    "cluster.node": "Agent's exec to node Ready, s",
}
_FILES: Mapping[str, Sequence[str]] = {
    "start": ("one.started", "one.ready", "crowd.ready", "death"),
    "removal": ("one.still", "one.left", "crowd.still", "crowd.left"),
    "cpu": ("start.cpu", "life.cpu", "life.runtime_cpu", "rest.cpu", "crowd.cpu"),
    "calls": ("life.calls", "crowd.idle_calls"),
    "memory": ("rest.rss", "crowd.rss", "rest.pss", "crowd.pss", "pod.pss", "modules"),
    "cluster": ("cluster.bound", "cluster.started", "cluster.killed", "cluster.node"),
}
_FLOOR = ("one.started", "one.ready", "crowd.ready", "death")
_FLOOR_GONE = ("one.still", "one.left", "crowd.still", "crowd.left")
_GOALS = {"life.cpu": 12.0, "rest.rss": 32.0, "crowd.rss": 35.0, "pod.pss": 30.0}
_RATIO_GOALS = dict.fromkeys((*_FLOOR_GONE, "crowd.ready"), 1.1)


def read(path: Path) -> list[Entry]:
    """Read the history. Raises HistoryError, and OSError without the file."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{path}:{number}"
        try:
            told = json.loads(line)
        except ValueError as exc:
            raise HistoryError(f"{where} is not JSON: {exc}") from exc
        found.append(_entry(where, told))
    return found


def _entry(where: str, told: object) -> Entry:
    if not isinstance(told, dict):
        raise HistoryError(f"{where}: not an object")
    texts = ("version", "revision", "date", "conditions", "peer_name")
    numbers = ("figures", "floor", "peer")
    if unknown := set(told) - {*texts, *numbers, "busy"}:
        raise HistoryError(f"{where}: no such field: {', '.join(sorted(unknown))}")
    for name in texts:
        default = "" if name == "peer_name" else None
        if not isinstance(told.get(name, default), str):
            raise HistoryError(f"{where}: {name} is {told.get(name)!r}, not a text")
    if not isinstance(told.get("busy"), bool):
        raise HistoryError(f"{where}: busy is {told.get('busy')!r}, not true or false")
    for name in numbers:
        _check(f"{where}: {name}", told.get(name, None if name == "figures" else {}))
    return Entry(**told)


def _check(where: str, found: object) -> None:
    if not isinstance(found, dict):
        raise HistoryError(f"{where} is {found!r}, not an object")
    for key, value in found.items():
        if key not in TITLES:
            raise HistoryError(f"{where}: there is no figure {key}")
        if not is_amount(value):
            raise HistoryError(f"{where}.{key} is {value!r}, not a number from 0 up")


def encode(entries: Sequence[Entry]) -> str:
    """Return the text of the history's file; what an entry does not have is left out."""
    return "".join(
        json.dumps({k: v for k, v in asdict(one).items() if v not in ({}, "")}) + "\n"
        for one in entries
    )


def add(entries: Sequence[Entry], new: Entry) -> list[Entry]:
    """Return the history with one more entry, in place of one of the same revision and date."""
    same = (new.revision, new.date)
    return [*(e for e in entries if (e.revision, e.date) != same), new]


def plots(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the SVG documents by file name."""
    found = {
        f"{name}.svg": draw([p for key in keys if (p := _values(key, entries))], _LEGEND)
        for name, keys in _FILES.items()
    }
    ratios = [p for key in (*_FLOOR, *_FLOOR_GONE) if (p := _ratios(key, entries))]
    found["floor.svg"] = draw(ratios, "ratio to the floor of the same run (hollow: a busy machine)")
    return found


def _values(key: str, entries: Sequence[Entry]) -> Panel | None:
    """Return the panel of a figure's values; None if nobody has measured it."""
    there = [entry for entry in entries if key in entry.figures]
    lines = [
        _line("agent", "#1f5fa8", there, lambda e: e.figures.get(key)),
        _line("floor", "#777777", there, lambda e: _floor(e, key), dashed=True),
        _line("Go kubelet", "#d9822b", there, lambda e: e.peer.get(key), dashed=True),
    ]
    drawn = tuple(line for line in lines if any(v is not None for v in line.values))
    return Panel(TITLES[key], _places(there), drawn, _GOALS.get(key)) if there else None


def _floor(entry: Entry, key: str) -> float | None:
    # Of the agent's own CPU the floor is containerd's: for a ratio, and not to be met.
    return None if key in ("start.cpu", "life.cpu") else entry.floor.get(key)


def _ratios(key: str, entries: Sequence[Entry]) -> Panel | None:
    there = [entry for entry in entries if key in entry.figures and entry.floor.get(key)]
    line = _line("agent", "#1f5fa8", there, lambda e: e.figures[key] / e.floor[key])
    title = f"{TITLES[key].rpartition(',')[0]}: ratio to the floor"
    return Panel(title, _places(there), (line,), _RATIO_GOALS.get(key)) if there else None


def _line(
    name: str,
    colour: str,
    entries: Sequence[Entry],
    value: Callable[[Entry], float | None],
    *,
    dashed: bool = False,
) -> Line:
    busy = frozenset(number for number, entry in enumerate(entries) if entry.busy)
    return Line(name, colour, tuple(map(value, entries)), busy, dashed)


def _places(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(entry.place for entry in entries)


def listing(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the lines of a Markdown table: what was measured when, and under which conditions."""
    yield "| date | version | revision | machine | conditions |"
    yield "| --- | --- | --- | --- | --- |"
    for one in entries:
        beside = f"; beside {one.peer_name}" if one.peer_name else ""
        cells = (one.date, one.version, one.revision, "busy" if one.busy else "idle")
        yield f"| {' | '.join(cells)} | {one.conditions}{beside} |"


def page(text: str, entries: Sequence[Entry]) -> str:
    """Return a page with the listing between its marks written anew.

    Raises HistoryError if the page lacks a mark.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise HistoryError(f"the page has no part from {BEGIN} to {END}")
    return f"{before}{BEGIN}\n\n" + "\n".join(listing(entries)) + f"\n\n{END}{after}"


def write(entries: Sequence[Entry]) -> None:
    """Write history, plots and the page's listing."""
    PATH.write_text(encode(entries))
    PLOTS.mkdir(exist_ok=True)
    for name, text in plots(entries).items():
        (PLOTS / name).write_text(text)
    PAGE.write_text(page(PAGE.read_text(), entries))


def entry_of(report: Mapping[str, Any]) -> Entry:
    """Return the entry that a report of the quick bench makes.

    Of a machine that had more to do than it has cores, times say nothing: they are left out.
    """
    told, figures = report["conditions"], report["figures"]
    load, cores = float(told["load before"]), int(told["cores"])
    known = {
        key: found
        for key, found in figures.items()
        if key in TITLES and (load <= cores or FIGURES[key].is_steady)
    }
    conditions = (
        f"`bench --quick`, {told['cpu']}, Linux {told['kernel']}, cgroup {told['cgroups']}, "
        f"containerd {told['containerd']}, Python {told['python']}, load {told['load before']}"
    )
    return Entry(
        told["version"],
        told["revision"],
        told["date"],
        load > cores / 2,
        conditions,
        {key: _short(found["ours"]) for key, found in known.items()},
        {key: _short(found["floor"]) for key, found in known.items() if found["floor"]},
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


@click.command()
def main() -> None:
    """Draw the plots of docs/performance.md anew, and list what is in them."""
    try:
        entries = read(PATH)
        write(entries)
    except HistoryError as exc:
        raise click.ClickException(str(exc)) from exc
    click.echo(f"{len(entries)} measurements: {', '.join(sorted(plots(entries)))} in {PLOTS}")


if __name__ == "__main__":
    main()
