"""Rounds into ratios: a Markdown table, JSON and plots."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Round = Mapping[str, Mapping[str, float]]
"""Of one round: contender's name -> figure -> value."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure over all rounds. `ratios` are ours to the peer's, a round each."""

    figure: str
    ours: float
    theirs: float | None
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None


def rows(rounds: Sequence[Round], ours: str, theirs: str | None) -> list[Row]:
    """Bring the rounds together by figure, in the order in which they were taken.

    A ratio is taken within its round, of what ran minutes apart on the same machine; a peer's
    zero gives none.
    """
    figures = list(dict.fromkeys(f for one in rounds for f in one.get(ours, {})))
    found = []
    for figure in figures:
        mine = [one[ours][figure] for one in rounds if figure in one.get(ours, {})]
        pairs = [
            (one[ours][figure], one[theirs][figure])
            for one in rounds
            if theirs is not None and figure in one.get(ours, {}) and figure in one.get(theirs, {})
        ]
        found.append(
            Row(
                figure,
                median(mine),
                median(b for _, b in pairs) if pairs else None,
                tuple(a / b for a, b in pairs if b),
            )
        )
    return found


def table(found: Sequence[Row], ours: str, theirs: str | None) -> Iterator[str]:
    """Yield the lines of a Markdown table: medians, and the ratio with its spread."""
    if theirs is None:
        yield f"| figure | {ours} |"
        yield "| --- | ---: |"
        for row in found:
            yield f"| {row.figure} | {_number(row.ours)} |"
        return
    yield f"| figure | {ours} | {theirs} | ratio | spread |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for row in found:
        peer = "" if row.theirs is None else _number(row.theirs)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        spread = f"{min(row.ratios):.2f}-{max(row.ratios):.2f}" if len(row.ratios) > 1 else ""
        yield f"| {row.figure} | {_number(row.ours)} | {peer} | {ratio} | {spread} |"


def plots(found: Sequence[Row], ours: str, theirs: str, directory: Path) -> Path:
    """Draw every figure's ratio, one bar with its spread each; return the PNG's path.

    Raises ImportError without matplotlib (extra `bench`).
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    drawn = [row for row in reversed(found) if row.ratio is not None]
    middle = [row.ratio or 0.0 for row in drawn]
    low = [m - min(row.ratios) for m, row in zip(middle, drawn, strict=True)]
    high = [max(row.ratios) - m for m, row in zip(middle, drawn, strict=True)]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.28 * len(drawn)), layout="constrained")
    colours = ["#3a7d44" if m <= 1 else "#c1432e" for m in middle]
    axes.barh([r.figure for r in drawn], middle, xerr=[low, high], color=colours, capsize=2)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel(f"{ours} / {theirs}: left of 1 is less")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "ratios.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def machine() -> dict[str, str]:
    """Describe what the numbers depend on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()[1]
    return {
        "cpu": f"{os.cpu_count()} x {models[0] if models else platform.machine()}",
        "memory": f"{int(memory) / 1e6:.0f} GB",
        "kernel": platform.release(),
        "cgroups": "v2" if Path("/sys/fs/cgroup/cgroup.procs").exists() else "v1",
        "containerd": _version("containerd"),
        "runc": _version("runc"),
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _version(program: str) -> str:
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return next(word for word in shown.stdout.split() if word[0].isdigit())
