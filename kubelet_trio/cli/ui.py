"""`kubelet-trio ui`: where the node page is, opened in a browser if there is a display."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.podstate import Json, items

_OPENER = "xdg-open"
_FILE = "kubelet-trio-ui.html"
_NOTE = "The address signs you in: it works once, within a minute."


def page_url(status: Json, token: str = "") -> str:
    """Return the URL of the node page, from the agent's status.

    `token` is a login for the page's actions. It is in the fragment, which browsers send nowhere.

    Raises `ClientError`: the page is off, or its port is not open.
    """
    port = next((p for p in items(status, "ports") if p.get("name") == "ui"), None)
    if port is None:
        raise ClientError("the agent serves no page: start it with --ui-port 10280, for example")
    if problem := port.get("problem"):
        raise ClientError(f"the page is not served: {problem}")
    return f"http://{port['address']}/ui/{f'#/login/{token}' if token else ''}"


def show(agent: AgentClient, environment: Mapping[str, str], *, opens: bool) -> None:
    """Print the page's URL, which signs in where the page has actions; with `opens` open it too."""
    status = agent.get("status")
    page_url(status)  # no login is made for a page that is not served
    token = _login(agent)
    url = page_url(status, token)
    click.echo(url)
    if token:
        click.echo(_NOTE, err=True)
    has_display = any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    # Not as root: a browser that runs as root is refused by most, and not wanted by anybody.
    if not opens or not has_display or os.geteuid() == 0:
        return
    if program := shutil.which(_OPENER):
        place = redirect(url, environment) if token else url
        if place:
            subprocess.run([program, place], check=False, stdout=subprocess.DEVNULL)


def _login(agent: AgentClient) -> str:
    """Return a login for the page; "" if it has no actions. Raises `ClientError`."""
    try:
        return str(agent.post("login").get("token", ""))
    except ClientError as exc:
        if str(exc).startswith("404 "):
            return ""  # an older agent, whose page has no actions
        raise


def redirect(url: str, environment: Mapping[str, str]) -> str:
    """Return a file that leads to `url`, in the user's own directory; "" if there is no such place.

    Every user of the machine can read the command line of the browser. So the token is not in it.
    """
    directory = environment.get("XDG_RUNTIME_DIR", "")  # 0700, by its specification
    if not directory:
        return ""
    path = Path(directory) / _FILE
    refresh = f'<meta http-equiv="refresh" content="0;url={url}">'
    text = f"<!DOCTYPE html>{refresh}<title>kubelet-trio</title>"
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise ClientError(
            f"{path} cannot be written: {exc.strerror}; open the address by hand"
        ) from exc
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return path.as_uri()
