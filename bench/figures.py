"""What `python -m bench --quick` measures, and when a figure of it has got worse.

A figure with a floor is compared as the ratio to it, sample by sample: each is taken within seconds
of its floor's, so what the machine does besides slows both down. The others are compared as they
are. Of all figures less is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TypeGuard

CROWD = 30  # pods at once


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: its name, its unit, and the least tolerance, which no calm machine narrows.

    `least` is a share of the value if `relative`, else an amount of it.
    """

    text: str
    unit: str
    has_floor: bool
    least: float
    relative: bool = True

    @property
    def is_steady(self) -> bool:
        """Whether other work of the machine leaves it alone."""
        return self.unit in ("MB", "KB", "calls", "a minute", "modules")

    def tolerance(self, value: float, deviation: float) -> float:
        """Return what may be added to `value` unnoticed, of what repeated runs deviate by."""
        return max(self.least * abs(value) if self.relative else self.least, 2 * deviation)


_ENOUGH = 3  # samples that outweigh what other work does to one

FIGURES: Mapping[str, Figure] = {
    "one.started": Figure("one pod, written to started", "s", True, 0.06),
    "one.ready": Figure("one pod, written to Ready", "s", True, 0.06),
    "death": Figure("death to restart", "s", True, 0.08),
    "one.still": Figure("one pod removed, nothing runs", "s", True, 0.08),
    "one.left": Figure("one pod removed, nothing left", "s", True, 0.08),
    "crowd.ready": Figure(f"{CROWD} pods Ready", "s", True, 0.06),
    "crowd.still": Figure(f"{CROWD} pods removed, nothing runs", "s", True, 0.08),
    "crowd.left": Figure(f"{CROWD} pods removed, nothing left", "s", True, 0.08),
    "start.cpu": Figure("agent's CPU to start a pod (floor: containerd's)", "ms", True, 0.06),
    "life.cpu": Figure("agent's CPU, a pod's life (floor: containerd's)", "ms", True, 0.06),
    "life.runtime_cpu": Figure("containerd's CPU, a pod's life", "ms", True, 0.08),
    "life.calls": Figure("CRI calls, a pod's life", "calls", True, 0.05),
    "rest.rss": Figure("RSS at rest", "MB", False, 0.5, relative=False),
    "rest.pss": Figure("PSS at rest", "MB", False, 0.5, relative=False),
    "crowd.rss": Figure(f"RSS under {CROWD} pods", "MB", False, 0.7, relative=False),
    "crowd.pss": Figure(f"PSS under {CROWD} pods", "MB", False, 0.7, relative=False),
    "pod.pss": Figure("PSS, a pod", "KB", False, 15.0, relative=False),
    "rest.cpu": Figure("idle CPU at rest", "ms a minute", False, 0.25),
    "crowd.cpu": Figure(f"idle CPU under {CROWD} pods", "ms a minute", False, 0.25),
    "crowd.idle_calls": Figure(f"CRI calls under {CROWD} idle pods", "a minute", False, 0.25),
    "modules": Figure("modules that the daemon imports", "modules", False, 0.0),
}
"""By key, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What was measured of one figure, and of its floor each time; `floor` is () without one."""

    ours: tuple[float, ...]
    floor: tuple[float, ...] = ()

    @property
    def compared(self) -> tuple[float, ...]:
        """Return what is compared with a baseline: ratios to the floor, or the values."""
        if not self.floor:
            return self.ours
        return tuple(a / b for a, b in zip(self.ours, self.floor, strict=True) if b)

    @property
    def middle(self) -> float:
        return median(self.compared)


Run = Mapping[str, Samples]
"""The samples of one run, by figure; one that ended early lacks some."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a baseline has of a figure, in the terms in which it is compared."""

    value: float
    tolerance: float


def merge(runs: Sequence[Run]) -> Run:
    """Return one run that has the samples of all."""
    return {
        key: Samples(
            tuple(value for run in runs if key in run for value in run[key].ours),
            tuple(value for run in runs if key in run for value in run[key].floor),
        )
        for key in FIGURES
        if any(key in run for run in runs)
    }


def learn(runs: Sequence[Run]) -> dict[str, Expected]:
    """Return what later runs are to be compared with: the medians, and how runs deviate of them.

    Raises ValueError with less than two runs: from one, nothing is learned of the next.
    """
    if len(runs) < 2:
        raise ValueError("a tolerance is learned from two runs or more")
    found = {}
    for key, figure in FIGURES.items():
        middles = [run[key].middle for run in runs if key in run]
        if middles:
            value = median(middles)
            deviation = max(abs(middle - value) for middle in middles)
            found[key] = Expected(value, figure.tolerance(value, deviation))
    return found


def is_sure(key: str, samples: Samples) -> bool:
    """Return whether a figure can be judged by what a machine measured that is too busy."""
    figure = FIGURES[key]
    return figure.is_steady or (figure.has_floor and len(samples.compared) >= _ENOUGH)


def judge(samples: Samples, expected: Expected) -> str:
    """Return `worse`, `better` or `same`.

    Beyond the tolerance is not enough: three quarters of the samples must be on that side of the
    expected value too, so that a run which was disturbed in the middle accuses nobody.
    """
    compared = samples.compared
    low, _, high = quantiles(compared, n=4) if len(compared) > 1 else (compared[0],) * 3
    if samples.middle > expected.value + expected.tolerance and low > expected.value:
        return "worse"
    if samples.middle < expected.value - expected.tolerance and high < expected.value:
        return "better"
    return "same"


def is_amount(found: object) -> TypeGuard[float]:
    """Return whether something read from JSON is a finite number from 0 up."""
    if not isinstance(found, int | float) or isinstance(found, bool):
        return False
    return math.isfinite(found) and found >= 0
