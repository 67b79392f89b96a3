"""Commands that show objects: pods, and what happened to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kubelet_trio.cli.commands.options import (
    all_namespaces_option,
    completed_by,
    listing,
    namespace_option,
    one_namespace,
    output_option,
    parse_selector,
    reads,
)

if TYPE_CHECKING:
    from kubelet_trio.cli.client import AgentClient
    from kubelet_trio.cli.listing import Shown


@click.command()
@click.argument("names", nargs=-1, shell_complete=completed_by("pod_names"))
@reads
@listing()
def pods(agent: AgentClient, names: tuple[str, ...], watch: bool, shown: Shown) -> None:
    """List the pods of this node, all or those named."""
    from kubelet_trio.cli import listing as lists

    lists.pods(agent, names, shown, watch=watch)


@click.command()
@click.argument(
    "what",
    nargs=-1,
    metavar="TYPE [NAME...] | TYPE/NAME...",
    shell_complete=completed_by("types_and_names"),
)
@click.option("--all", "every", is_flag=True, help="Of volumes: also emptyDir and the like.")
@reads
@listing()
def get(agent: AgentClient, what: tuple[str, ...], every: bool, watch: bool, shown: Shown) -> None:
    """List objects by kubectl's names: pods, nodes, events, images or volumes."""
    from kubelet_trio.cli import getting

    getting.get(agent, what, shown, watch=watch, every=every)


@click.command()
@click.argument(
    "what",
    nargs=-1,
    required=True,
    metavar="[pod|node] NAME | TYPE/NAME | node",
    shell_complete=completed_by("objects"),
)
@all_namespaces_option
@namespace_option
@reads
def describe(agent: AgentClient, what: tuple[str, ...], **options: Any) -> None:
    """Show all details of pods, or of the node: `describe web`, `describe node`."""
    from kubelet_trio.cli import getting

    getting.describe(agent, what, one_namespace(options))


@click.command()
@click.argument("name", metavar="[pod/]NAME", shell_complete=completed_by("pod_names"))
@output_option
@all_namespaces_option
@namespace_option
@reads
def why(agent: AgentClient, name: str, output: str | None, **options: Any) -> None:
    """Say why a pod is as it is: what is wanted, what is, what stands between, what comes next."""
    from kubelet_trio.cli import why as explaining

    explaining.why(agent, name, one_namespace(options), output)


@click.command()
@click.argument(
    "name",
    required=False,
    default="",
    metavar="[pod/]NAME",
    shell_complete=completed_by("pod_names"),
)
@click.argument(
    "container_argument",
    metavar="[CONTAINER]",
    required=False,
    default="",
    shell_complete=completed_by("container_names"),
)
@click.option(
    "-c",
    "--container",
    default="",
    help="The container, if there is more than one.",
    shell_complete=completed_by("container_names"),
)
@click.option("--all-containers", is_flag=True, help="All containers of the pod.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Pods with these labels.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the container ends.")
@click.option("-p", "--previous", is_flag=True, help="The instance before this one.")
@click.option("--tail", type=int, default=None, help="Only the last lines; -1: all.")
@click.option("--since", default="", metavar="DURATION", help="Only newer lines, e.g. 5m.")
@click.option("--since-time", default="", metavar="TIME", help="Only newer lines (RFC 3339).")
@click.option("--limit-bytes", type=int, default=0, help="At most this many bytes.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@click.option("--prefix", is_flag=True, help="Begin each line with [pod/NAME/CONTAINER].")
@click.option(
    "--max-log-requests",
    "max_requests",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Most logs to follow at once.",
)
@click.option("--ignore-errors", is_flag=True, help="Go on where one of the logs fails.")
@all_namespaces_option
@namespace_option
@reads
def logs(
    agent: AgentClient, name: str, container_argument: str, selector: str, **options: Any
) -> None:
    """Print the log of a container, or of several."""
    from kubelet_trio.cli import logs as reading
    from kubelet_trio.cli.listing import Shown

    if bool(name) == bool(selector):
        raise click.UsageError("name one pod, or choose pods by -l LABELS")
    container = options.pop("container") or container_argument
    if container and options["all_containers"]:
        raise click.UsageError("name one container, or give --all-containers")
    namespace = one_namespace(options)
    chosen = reading.LogOptions(container=container, **options)
    if selector:
        shown = Shown(namespace=namespace, labels=parse_selector(selector))
        reading.selected_logs(agent, shown, chosen)
    else:
        reading.pod_logs(agent, name, namespace, chosen)


@click.command()
@click.option("--for", "involved", default="", metavar="KIND/NAME", help="Only of this object.")
@click.option("--types", default="", metavar="TYPES", help="Only these: Normal, Warning.")
@reads
@listing(labels=False)
def events(agent: AgentClient, involved: str, types: str, watch: bool, shown: Shown) -> None:
    """List the events of this node."""
    from kubelet_trio.cli import events as reading

    wanted = [name.strip().lower() for name in types.split(",") if name.strip()]
    if unknown := sorted(set(wanted) - {"normal", "warning"}):
        raise click.UsageError(f'--types: "{unknown[0]}": expected Normal, Warning, or both')
    reading.events(agent, involved, wanted, shown, watch=watch)


@click.command()
@click.argument("names", nargs=-1)
@reads
@listing(watch=False, labels=False)
def images(agent: AgentClient, names: tuple[str, ...], shown: Shown) -> None:
    """List the images of this node, and the pods that use them."""
    from kubelet_trio.cli import images as reading

    reading.images(agent, names, shown)
