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
