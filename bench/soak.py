"""`python -m bench.soak --minutes 30`: a node's life in disorder, for as long as is asked.

Root, and what `scripts/test cluster` needs; see `tests/harness/soak.py` for what is done and seen.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.harness import Containerd, WaitTimeoutError, missing
from tests.harness.control_plane import ControlPlane, missing_programs
from tests.harness.kube import KubeClient
from tests.harness.soak import Soak
from tests.harness.soak_checks import DivergedError

_CHECKPOINTS = 100_000


@click.command()
@click.option("--minutes", default=30.0, show_default=True, help="How long.")
@click.option("--seed", type=int, help="Of an earlier run, to take its steps again.")
@click.option("--steps", default=40, show_default=True, help="Between two checkpoints.")
def main(minutes: float, seed: int | None, steps: int) -> None:
    """Disturb a node at random, and compare at checkpoints what is with what it tells."""
    if lacks := [*missing(), *missing_programs()]:
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    seed = secrets.randbelow(10**6) if seed is None else seed
    click.echo(f"seed {seed}")
    began = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"{time.monotonic() - began:7.1f} {line}")

    with (
        tempfile.TemporaryDirectory() as base,
        ControlPlane(Path(base) / "plane") as plane,
        KubeClient(plane.admin_kubeconfig) as kube,
        Containerd() as containerd,
    ):
        soak = Soak(Path(base), plane, kube, containerd, seed, say)
        try:
            soak.open()
            soak.run(checkpoints=_CHECKPOINTS, steps=steps, until=began + 60 * minutes, calm=3)
        except (DivergedError, WaitTimeoutError) as exc:
            click.echo(f"seed {seed} diverged: {exc}", err=True)
            click.echo(soak.agent.tail(200), err=True)
            sys.exit(1)
        finally:
            soak.close()
    done = ", ".join(f"{count} {step}" for step, count in sorted(soak.steps.items()))
    click.echo(f"nothing diverged in {(time.monotonic() - began) / 60:.1f} min: {done}")


if __name__ == "__main__":
    main()
