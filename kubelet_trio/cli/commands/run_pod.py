"""`kubelet-trio run-pod`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kubelet_trio.cli.commands.options import reads

if TYPE_CHECKING:
    from kubelet_trio.cli.client import AgentClient


class _NotStartedError(click.ClickException):
    exit_code = 125  # as docker run: the pod, not its program, has failed


@click.command("run-pod")
@click.argument("file", metavar="FILE|-")
@click.option(
    "--runtime",
    default=None,
    metavar="process|unix://...",
    help="Run it by a kubelet of this command on this runtime, whatever agent answers.",
)
@click.option("--allow-root", is_flag=True, help="Let processes of runtime `process` be root's.")
@reads
def run_pod(agent: AgentClient, file: str, runtime: str | None, allow_root: bool) -> None:
    """Run one pod in the foreground, print its logs, and exit with its exit code.

    By the agent, if it reads a manifest directory; else by a kubelet of this command, with a
    temporary directory. 125: the pod could not start. Ctrl-C ends it in order.
    """
    from kubelet_trio.cli import run_pod as running
    from kubelet_trio.cli.client import ClientError
    from kubelet_trio.cli.run_pod_places import find_place

    if runtime not in (None, "process") and not str(runtime).startswith(("/", "unix:///")):
        raise click.UsageError(f"--runtime {runtime}: expected process or unix:///PATH")
    try:
        text, origin = running.read_manifest(file)
        place = find_place(agent, text, origin, runtime, root=allow_root)
        sys.exit(running.run_pod(place))
    except ClientError as exc:
        raise _NotStartedError(str(exc)) from exc
