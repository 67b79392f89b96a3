"""The command `record`: the recordings of the flight recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kubelet_trio.cli.local import default_root

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def record() -> None:
    """Pack or show the recording of what reached the agent, and what it decided."""


def _options(command: F) -> F:
    """Give a command the options of both, and print its errors."""

    def call(**arguments: Any) -> None:
        from kubelet_trio.cli.client import ClientError

        outer = click.get_current_context().find_root().obj
        root_dir = arguments.pop("root_dir") or outer or default_root()
        try:
            command(root_dir, **arguments)
        except ClientError as exc:
            raise click.ClickException(str(exc)) from exc

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--since", "back", metavar="DURATION", help="Not older than 30m, 2h, ..."),
        click.option("-n", "--namespace", default="default", show_default=True, help="Of the pod."),
        click.option("--pod", default=None, metavar="NAME", help="Only this pod, and the node."),
        click.option("--root-dir", default=None, metavar="DIR", help="Of the agent."),
    ):
        call = option(call)
    return call  # type: ignore[return-value]


@record.command()
@click.argument("path", metavar="[FILE]", required=False)
@_options
def save(
    root_dir: str, path: str | None, pod: str | None, namespace: str, back: str | None
) -> None:
    """Pack the recording of an agent, running or dead, into a file.

    Secrets are left out of recordings; docs/recorder.md has a table. The file can be shown with
    `record show`, and replayed with `replay`.
    """
    from kubelet_trio.cli.recording import save as do

    do(root_dir, path, pod, namespace, _seconds(back))


@record.command()
@click.argument("path", metavar="[FILE]", required=False)
@_options
def show(
    root_dir: str, path: str | None, pod: str | None, namespace: str, back: str | None
) -> None:
    """Print the entries of a file, or of the agent's own recording, a line each."""
    from kubelet_trio.cli.recording import show as do

    do(root_dir, path, pod, namespace, _seconds(back))


def _seconds(text: str | None) -> float | None:
    from kubelet_trio.cli.ages import parse_since

    if text is None:
        return None
    try:
        return parse_since(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--since") from exc
