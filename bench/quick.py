"""`python -m bench --quick`: what got worse since the committed baseline, in three minutes.

Root, and what the containerd suite needs. It measures (`bench.pairs`), compares (`bench.baseline`)
and, if asked to, writes a new baseline and the entry of the history (`bench.history`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import FrameType
from typing import Any

import click
import grpc

from bench import history
from bench.baseline import (
    PATH,
    Baseline,
    BaselineError,
    compare,
    encode,
    notes,
    read,
    report,
    table,
)
from bench.figures import Run, learn, merge
from bench.install import REPO
from bench.pairs import take
from bench.report import machine
from kubelet_trio import __version__
from tests.harness import WaitTimeoutError, missing

_RUNS = 3  # that a baseline is learned from
# A machine that cannot run containerd after all, or an agent that does not do what is waited for.
_BROKEN = (
    OSError,
    RuntimeError,
    PackageNotFoundError,
    WaitTimeoutError,
    grpc.RpcError,
    subprocess.CalledProcessError,
)


@click.command()
@click.option("--strict", is_flag=True, help="Exit with 1 if anything got worse.")
@click.option("--update-baseline", is_flag=True, help="Write a new baseline from several runs.")
@click.option("--runs", default=_RUNS, show_default=True, help="For a new baseline; two at least.")
@click.option(
    "--baseline",
    "path",
    default=PATH,
    type=click.Path(path_type=Path),
    help="Another baseline than the committed one.",
)
@click.option("--budget", default=130.0, show_default=True, help="Seconds to measure in, a run.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write results here.")
def main(
    strict: bool,
    update_baseline: bool,
    runs: int,
    path: Path,
    budget: float,
    json_file: Path | None,
) -> None:
    """Measure the main loads against their floor, and print what got worse since the baseline."""
    if update_baseline and runs < 2:
        raise click.BadParameter(
            "a tolerance is learned from two runs or more", param_hint="--runs"
        )
    signal.signal(signal.SIGTERM, _end)  # what runs is taken down then too
    if lacks := missing():
        click.echo(f"bench --quick: not run: this machine has {', '.join(lacks)}")
        sys.exit(int(strict))
    if update_baseline and runs < 2:
        raise click.BadParameter(
            "a tolerance is learned from two runs or more", param_hint="--runs"
        )
    baseline = None if update_baseline else _read(path)
    conditions = {**describe(), **machine()}
    taken = [_take(budget) for _ in range(runs if update_baseline else 1)]
    if update_baseline:
        baseline = Baseline({**conditions, "runs": str(runs)}, learn(taken))
        path.write_text(encode(baseline))
        click.echo(f"{path}: written", err=True)
    run = merge(taken)
    found = compare(run, baseline, conditions)
    told = report(found, run, conditions)
    if update_baseline and path == PATH:
        _add_to_history(told)
    click.echo("\n".join(f"- {name}: {value}" for name, value in conditions.items()))
    click.echo("\n" + "\n".join(table(found)) + "\n")
    click.echo("\n".join(notes(found, baseline, conditions)))
    if json_file is not None:
        json_file.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(int(strict and any(row.verdict == "worse" for row in found)))


def _read(path: Path) -> Baseline | None:
    if path == PATH and not path.exists():
        return None
    try:
        return read(path)
    except BaselineError as exc:
        raise click.ClickException(str(exc)) from exc


def _add_to_history(told: Mapping[str, Any]) -> None:
    try:
        history.write(history.add(history.read(history.PATH), history.entry_of(told)))
    except history.HistoryError as exc:
        raise click.ClickException(str(exc)) from exc


def _take(budget: float) -> Run:
    try:
        return take(budget, lambda load: click.echo(f"bench --quick: {load}", err=True))
    except _BROKEN as exc:
        raise click.ClickException(f"the run broke off: {why(exc)}") from exc


def why(broken: Exception) -> str:
    """Return in one line what broke a run off."""
    # The text of a call that failed begins with a line that says only that.
    if isinstance(broken, grpc.RpcError) and isinstance(broken, grpc.Call):
        return f"a call of the runtime failed: {broken.code().name}: {broken.details()}"
    return next(iter(str(broken).strip().splitlines()), type(broken).__name__)


def describe() -> Mapping[str, str]:
    """Return what was measured, and when."""
    return {
        "version": __version__,
        "revision": _revision(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cores": str(os.cpu_count()),
    }


def _revision() -> str:
    """Return the commit of this checkout, with a `+` if it has been changed since."""
    command = ["git", "-C", str(REPO), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or not a repository
        return "unknown"
    return done.stdout.strip()


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
