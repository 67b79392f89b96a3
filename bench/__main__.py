"""`python -m bench [--json FILE] [--idle SECONDS]`: root, and what the containerd suite needs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from bench.measure import Bench
from bench.report import machine, table
from tests.harness import Agent, Containerd, CriClient, missing


@click.command()
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write results here too."
)
@click.option("--idle", default=60.0, help="How long to watch the agent do nothing, in seconds.")
def main(json_file: Path | None, idle: float) -> None:
    """Measure the agent on a private containerd."""
    if lacks := missing():
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    described = machine()
    with tempfile.TemporaryDirectory() as base, Containerd() as containerd:
        agent = Agent(Path(base) / "agent", containerd)
        try:
            with CriClient(containerd.socket) as cri:
                results = Bench(agent, cri, idle).run()
        finally:
            agent.close()
    click.echo("\n".join(f"- {name}: {value}" for name, value in described.items()))
    click.echo()
    click.echo("\n".join(table(results)))
    if json_file is not None:
        found = {"machine": described, "results": results}
        json_file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
