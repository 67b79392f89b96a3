"""`kubelet-trio ui`: where the node page is, opened in a browser if there is a display."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.podstate import Json, items

_OPENER = "xdg-open"


def page_url(status: Json) -> str:
    """Return the URL of the node page, from the agent's status.

    Raises `ClientError`: the page is off, or its port is not open.
    """
    port = next((p for p in items(status, "ports") if p.get("name") == "ui"), None)
    if port is None:
        raise ClientError("the agent serves no page: start it with --ui-port 10280, for example")
    if problem := port.get("problem"):
        raise ClientError(f"the page is not served: {problem}")
    return f"http://{port['address']}/ui/"


def show(agent: AgentClient, environment: Mapping[str, str], *, opens: bool) -> None:
    """Print the page's URL; with `opens` open it where there is a display."""
    url = page_url(agent.get("status"))
    click.echo(url)
    has_display = any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    # Not as root: a browser that runs as root is refused by most, and not wanted by anybody.
    if opens and has_display and os.geteuid() != 0 and (program := shutil.which(_OPENER)):
        subprocess.run([program, url], check=False, stdout=subprocess.DEVNULL)
