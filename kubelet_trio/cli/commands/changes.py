"""Commands that change what runs on the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from kubelet_trio.cli.commands.options import namespace_option, output_option, reads

if TYPE_CHECKING:
    from kubelet_trio.cli.client import AgentClient


@click.command()
@click.argument("name")
@click.option("-c", "--container", default="", help="Only this container.")
@click.option("--wait", is_flag=True, help="Return once the pod is ready again.")
@namespace_option
@reads
def restart(agent: AgentClient, name: str, container: str, wait: bool, namespace: str) -> None:
    """Restart the containers of a pod in place: with preStop hooks, grace, and no back-off.

    Sandbox, address and volumes stay. Containers that never restart (restartPolicy Never) are
    refused.
    """
    from kubelet_trio.cli import reading
    from kubelet_trio.cli import restart as restarting

    pod = reading.find_pod(agent, name, namespace)
    restarting.restart(agent, pod, container, waits=wait)


_files_option = click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|-",
    help="A manifest, a directory of them, or the input.",
)


@click.command()
@_files_option
@click.option("--wait", is_flag=True, help="Return once the pods are ready, or have completed.")
@click.option("--timeout", default="0s", metavar="DURATION", help="Limit of --wait; 0 is none.")
@click.option("--dry-run", is_flag=True, help="Validate and say what would change.")
@reads
def apply(
    agent: AgentClient, files: tuple[str, ...], wait: bool, timeout: str, dry_run: bool
) -> None:
    """Write manifests into the agent's own manifest directory, after full validation.

    For pods without an API server, and the objects that they use: ConfigMap, Secret,
    PersistentVolume, PersistentVolumeClaim, RuntimeClass, CSIDriver and StorageClass.
    """
    from kubelet_trio.cli.apply import apply as apply_files
    from kubelet_trio.durations import parse_duration

    if not files:
        raise click.UsageError("name a manifest: apply -f FILE")
    try:
        limit = float(parse_duration(timeout))
    except ValueError as exc:
        raise click.UsageError(f"--timeout: {exc}") from exc
    apply_files(agent, files, dry=dry_run, wait=limit if wait else None)


@click.command()
@click.argument("names", nargs=-1, metavar="[POD...]")
@_files_option
@click.option("--wait", is_flag=True, help="Return once the pods are gone.")
@namespace_option
@reads
def delete(
    agent: AgentClient, names: tuple[str, ...], files: tuple[str, ...], wait: bool, namespace: str
) -> None:
    """Remove manifests from the agent's own manifest directory: `delete POD` or `delete -f`."""
    from kubelet_trio.cli.apply import delete as delete_files

    if not files and not names:
        raise click.UsageError("name a pod, or a manifest: delete POD, delete -f FILE")
    delete_files(agent, names, files, namespace, waits=wait)


_prune_option = click.option(
    "--prune",
    is_flag=True,
    help="As if the agent's directory had nothing else: pods that are not named end.",
)


@click.command()
@_files_option
@_prune_option
@output_option
@reads
def plan(agent: AgentClient, files: tuple[str, ...], prune: bool, output: str | None) -> None:
    """Say what an edit would do before it is made, as `apply -f` would make it.

    Which pods start, end, are replaced or resized in place, with their containers and volumes, and
    whether the node would admit them. Exits with 0 if nothing would change, 1 if something would, 2
    in trouble (a manifest is not valid, no agent), 3 if the node would refuse a part.
    """
    from kubelet_trio.cli import plan as planning

    _exit(lambda: planning.plan(agent, _named(files, "plan"), prune=prune, output=output))


@click.command()
@_files_option
@_prune_option
@reads
def diff(agent: AgentClient, files: tuple[str, ...], prune: bool) -> None:
    """Compare manifests with those that are in force, as the agent has them: with defaults.

    Values of secrets are not shown. Exits as diff(1): 0 no difference, 1 differences, 2 trouble.
    """
    from kubelet_trio.cli import plan as planning

    _exit(lambda: planning.diff(agent, _named(files, "diff"), prune=prune))


class _TroubleError(click.ClickException):
    exit_code = 2  # `cli.plan.TROUBLE`


def _named(files: tuple[str, ...], command: str) -> tuple[str, ...]:
    if not files:
        raise click.UsageError(f"name a manifest: {command} -f FILE")
    return files


def _exit(command: Callable[[], int]) -> None:
    """Exit with the code of a command; trouble is 2, since 1 is an answer."""
    from kubelet_trio.cli.client import ClientError

    try:
        code = command()
    except ClientError as exc:
        raise _TroubleError(str(exc)) from exc
    click.get_current_context().exit(code)
