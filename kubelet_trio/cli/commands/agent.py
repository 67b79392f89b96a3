"""Commands that show the agent itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kubelet_trio.cli.commands.options import output_option, reads

if TYPE_CHECKING:
    from kubelet_trio.cli.client import AgentClient


@click.command()
@click.option("--no-open", is_flag=True, help="Only print the URL.")
@reads
def ui(agent: AgentClient, no_open: bool) -> None:
    """Print the URL of the node page, and open it where there is a display."""
    import os

    from kubelet_trio.cli.ui import show

    show(agent, os.environ, opens=not no_open)


@click.command()
@output_option
@reads
def tree(agent: AgentClient, output: str | None) -> None:
    """Show the agent's live supervision tree."""
    from kubelet_trio.cli import reading

    reading.tree(agent, output)


@click.command()
@output_option
@reads
def status(agent: AgentClient, output: str | None) -> None:
    """Show the state of the agent, its runtime and its sources."""
    from kubelet_trio.cli import reading

    reading.status(agent, output)


@click.command()
@output_option
@reads
def version(agent: AgentClient, output: str | None) -> None:
    """Show the version of this command and of the running agent."""
    from kubelet_trio.cli import reading

    reading.version(agent, output)


@click.command("agent-log")
@click.option("--tail", type=click.IntRange(min=0), default=None, help="Only so many entries.")
@click.option(
    "--level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default=None,
    help="Only entries of this level and above.",
)
@reads
def agent_log(agent: AgentClient, tail: int | None, level: str | None) -> None:
    """Print the latest entries of the agent's own log."""
    query = {"level": level or "", "lines": "" if tail is None else str(tail)}
    text = agent.text("agent-log", **{name: value for name, value in query.items() if value})
    click.echo(text, nl=False)


@click.command()
@click.argument("kind", type=click.Choice(["cpu", "heap", "tasks"]))
@click.option("--seconds", type=click.IntRange(1, 300), default=10, show_default=True)
@click.option("--text", is_flag=True, help="Print stacks as lines, for flame graphs.")
@click.option("-o", "--output", "path", default=None, metavar="FILE", help="Where to write it.")
@reads
def profile(agent: AgentClient, kind: str, seconds: int, text: bool, path: str | None) -> None:
    """Profile the running agent, for `go tool pprof`.

    cpu is the CPU time of its threads, heap the memory that it allocates meanwhile, tasks what its
    tasks and threads are doing.
    """
    from kubelet_trio.cli.profiling import profile as take

    take(agent, kind, seconds, path, as_text=text)
