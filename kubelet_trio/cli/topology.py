"""`kubelet-trio topology`: draws the machine, and who has which CPUs, memory and devices."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import click

from kubelet_trio.cli.client import AgentClient, ClientError, NoAgentError
from kubelet_trio.cli.tables import as_text, has_colour


def topology(agent: AgentClient, output: str | None, *, alone: bool, in_ascii: bool) -> None:
    """Print the drawing, JSON or YAML.

    Args:
        agent: is asked who has what. If it does not run, the machine alone is shown.
        output: `json`, `yaml`, or None for the drawing.
        alone: whether not to ask it.
        in_ascii: whether to draw for terminals without Unicode.

    Raises:
        ClientError: the agent does not answer as expected, or the machine cannot be read.
    """
    page = _this_machine() if alone else _ask(agent)
    if output:
        click.echo(as_text(page, output), nl=False)
        return
    from kubelet_trio.managers import draw_machine, read_topology_page  # deferred: not for JSON

    try:
        machine, holdings = read_topology_page(page)
    except ValueError as exc:
        raise ClientError(f"the agent is of another version: {exc}") from exc
    drawn = draw_machine(
        machine,
        holdings,
        width=shutil.get_terminal_size().columns,
        unicode=not in_ascii and _has_unicode(),
        colour=has_colour(),
    )
    click.echo(drawn, nl=False)


def _ask(agent: AgentClient) -> Any:
    """Return the agent's page, or this machine's without an agent. Raises `ClientError`."""
    try:
        return agent.get("topology")
    except NoAgentError as exc:
        click.echo(f"{exc} This is the machine alone.", err=True)
        return _this_machine()


def _this_machine() -> Any:
    from kubelet_trio.managers import TopologyError, read_machine, topology_page

    try:
        return topology_page(read_machine(), None)
    except TopologyError as exc:
        raise ClientError(str(exc)) from exc


def _has_unicode() -> bool:
    # TERM=linux is the console, whose fonts lack the signs.
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") != "linux"
