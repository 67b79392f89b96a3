"""The committed baseline of `python -m bench --quick`, and the comparison with it.

`bench/baseline.json` holds each figure as it is compared (a ratio to the floor, MB, a count) with
the tolerance that repeated runs have taught, and the conditions under which it was taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import FIGURES, Expected, Run, is_amount, is_sure, judge

PATH = Path(__file__).with_name("baseline.json")
FORMAT = 1
_TOO_BUSY = 2.0  # tasks a core
# What makes figures differ that no change of ours has touched.
_SAME = ("python", "containerd", "cores", "cgroups")


class BaselineError(Exception):
    """A baseline cannot be read; the message names the file and what is wrong in it."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is expected of each figure, and under which conditions it was found."""

    conditions: Mapping[str, str]
    figures: Mapping[str, Expected]


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of a run beside the baseline; `expected` is None for one that it lacks."""

    key: str
    ours: float
    floor: float | None
    compared: float
    spread: tuple[float, float]
    expected: Expected | None
    verdict: str  # "worse", "better", "same", "new", or "unsure" on a machine that is too busy


def encode(baseline: Baseline) -> str:
    """Return the text of a baseline's file."""
    figures = {
        key: {name: round(value, 4) for name, value in asdict(found).items()}
        for key, found in baseline.figures.items()
    }
    told = {"format": FORMAT, "conditions": dict(baseline.conditions), "figures": figures}
    return json.dumps(told, indent=1) + "\n"


def read(path: Path) -> Baseline:
    """Read a baseline. Raises BaselineError."""
    try:
        told = json.loads(path.read_text())
    except OSError as exc:
        raise BaselineError(f"{path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise BaselineError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        found = told.get("format") if isinstance(told, dict) else None
        raise BaselineError(f"{path}: format is {found!r}, and {FORMAT} is what this bench reads")
    figures = _mapping(path, told, "figures")
    return Baseline(
        {name: str(value) for name, value in _mapping(path, told, "conditions").items()},
        {key: _expected(path, key, figures[key]) for key in figures},
    )


def _mapping(path: Path, told: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = told.get(field)
    if not isinstance(found, dict):
        raise BaselineError(f"{path}: {field} is {found!r}, not an object")
    return found


def _expected(path: Path, key: str, found: object) -> Expected:
    if not isinstance(found, dict):
        raise BaselineError(f"{path}: figures.{key} is {found!r}, not an object")
    value, tolerance = (
        _number(path, f"figures.{key}.{name}", found.get(name)) for name in ("value", "tolerance")
    )
    return Expected(value, tolerance)


def _number(path: Path, field: str, found: object) -> float:
    if not is_amount(found):
        raise BaselineError(f"{path}: {field} is {found!r}, not a number from 0 up")
    return float(found)


def compare(run: Run, baseline: Baseline | None, now: Mapping[str, str]) -> list[Compared]:
    """Compare a run's figures, in the order of the table; those that it lacks are left out."""
    found, too_busy = [], is_busier(now, _TOO_BUSY)
    for key in FIGURES:
        if key not in run:
            continue
        samples = run[key]
        expected = baseline.figures.get(key) if baseline is not None else None
        verdict = "new" if expected is None else judge(samples, expected)
        if too_busy and verdict in ("worse", "better") and not is_sure(key, samples):
            verdict = "unsure"
        found.append(
            Compared(
                key,
                median(samples.ours),
                median(samples.floor) if samples.floor else None,
                samples.middle,
                (min(samples.compared), max(samples.compared)),
                expected,
                verdict,
            )
        )
    return found


def is_busier(conditions: Mapping[str, str], than: float) -> bool:
    """Return whether a machine had more to do before a run than so many tasks a core."""
    return float(conditions.get("load before", 0)) > than * int(conditions.get("cores", 1))


def table(found: list[Compared]) -> Iterator[str]:
    """Yield the lines of a table in Markdown; `compared` has ratios to the floor."""
    yield "| figure | here | floor | compared | baseline | |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for row in found:
        figure = FIGURES[row.key]
        here = f"{number(row.ours)} {figure.unit}"
        floor = "" if row.floor is None else number(row.floor)
        compared = number(row.compared)
        if row.spread[0] != row.spread[1]:
            compared += f" ({number(row.spread[0])}-{number(row.spread[1])})"
        was = ""
        if row.expected is not None:
            was = f"{number(row.expected.value)} ± {number(row.expected.tolerance)}"
        verdict = {"same": "", "worse": "**worse**"}.get(row.verdict, row.verdict)
        yield f"| {figure.text} | {here} | {floor} | {compared} | {was} | {verdict} |"


def notes(
    found: list[Compared], baseline: Baseline | None, now: Mapping[str, str]
) -> Iterator[str]:
    """Yield what got worse, a line each, and what the comparison is to be taken with."""
    if baseline is None:
        yield "there is no baseline: --update-baseline writes one"
        return
    was = baseline.conditions
    yield (
        f"baseline: {was.get('version', '?')} at {was.get('revision', '?')}, "
        f"{was.get('date', '?')}, load average {was.get('load before', '?')}"
    )
    for name in _SAME:
        if was.get(name) != now.get(name):
            yield f"not alike: {name} is {now.get(name)}, the baseline's {was.get(name)}"
    if is_busier(now, 1):
        yield f"load average {now['load before']} before the run: figures say less than usual"
    if missing := [
        FIGURES[k].text for k in baseline.figures if k in FIGURES and not _has(found, k)
    ]:
        yield f"not measured in this run: {', '.join(missing)}"
    worse = [row for row in found if row.verdict == "worse"]
    for row in worse:
        assert row.expected is not None
        kind = "of the floor" if FIGURES[row.key].has_floor else FIGURES[row.key].unit
        yield (
            f"worse: {FIGURES[row.key].text}: {number(row.compared)} {kind}, "
            f"was {number(row.expected.value)} (tolerance {number(row.expected.tolerance)})"
        )
    if not worse:
        yield "nothing got worse"


def report(found: list[Compared], run: Run, now: Mapping[str, str]) -> dict[str, Any]:
    """Return all of it for programs."""
    figures = {
        row.key: {
            "text": FIGURES[row.key].text,
            "unit": FIGURES[row.key].unit,
            "ours": row.ours,
            "floor": row.floor,
            "compared": row.compared,
            "samples": list(run[row.key].compared),
            "baseline": None if row.expected is None else asdict(row.expected),
            "verdict": row.verdict,
        }
        for row in found
    }
    return {"format": FORMAT, "conditions": dict(now), "figures": figures}


def _has(found: list[Compared], key: str) -> bool:
    return any(row.key == key for row in found)


def number(value: float) -> str:
    """Return three digits of a number, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
