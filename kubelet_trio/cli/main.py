"""The commands of `kubelet-trio`.

Each command imports its modules when it runs: `kubelet-trio pods` must be fast, and only `run`
needs the agent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kubelet_trio.cli.local import ROOTS_ROOT, default_root

if TYPE_CHECKING:
    from kubelet_trio.cli.client import AgentClient

F = TypeVar("F", bound=Callable[..., Any])

_FORMS = click.Choice(["json", "yaml"])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root-dir",
    default=None,
    metavar="DIR",
    help=f"Root directory of the agent to connect to, or to run.  [default: {ROOTS_ROOT}, for "
    "other users than root $XDG_STATE_HOME/kubelet-trio]",
)
@click.pass_context
def cli(context: click.Context, root_dir: str | None) -> None:
    """A Kubernetes node agent, and commands to inspect it."""
    context.obj = root_dir


def _reads(command: F) -> F:
    """Pass the agent's client to a command, and print its errors."""

    def call(root_dir: str | None, **arguments: Any) -> None:
        from kubelet_trio.cli.client import AgentClient, ClientError

        outer = click.get_current_context().obj
        try:
            command(AgentClient(root_dir or outer or default_root()), **arguments)
        except ClientError as exc:
            raise click.ClickException(str(exc)) from exc
        except KeyboardInterrupt:
            sys.exit(130)  # the usual end of a watch: no traceback

    # click takes name and help from the function, and decorators below this one left their
    # options on the command.
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return click.option(
        "--root-dir", default=None, metavar="DIR", help="Root directory of the agent."
    )(call)  # type: ignore[return-value]


_namespace = click.option("-n", "--namespace", default="", help="Only this namespace.")
_output = click.option("-o", "--output", type=_FORMS, default=None, help="Output format.")


@cli.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, flags: tuple[str, ...]) -> None:
    """Run the node agent. `run --help` lists the Go kubelet's flags."""
    from kubelet_trio.cli.run import run as run_agent

    # Reached by `kubelet-trio --root-dir DIR run`; a plain `run` never gets to click.
    argv = [f"--root-dir={context.obj}"] if context.obj else []
    sys.exit(run_agent([*argv, *flags]))


@cli.command()
@click.argument("names", nargs=-1)
@click.option("-w", "--watch", is_flag=True, help="Then print every change.")
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), default=None)
# Accepted because kubectl needs it; here all namespaces are the default.
@click.option("-A", "--all-namespaces", is_flag=True, hidden=True)
@_namespace
@_reads
def pods(
    agent: AgentClient,
    names: tuple[str, ...],
    watch: bool,
    output: str | None,
    all_namespaces: bool,
    namespace: str,
) -> None:
    """List the pods of this node, all or those named."""
    from kubelet_trio.cli import reading

    reading.pods(agent, names, namespace, output, watch=watch)


@cli.group()
def describe() -> None:
    """Show all details of an object."""


@describe.command("pod")
@click.argument("name")
@_namespace
@_reads
def describe_pod(agent: AgentClient, name: str, namespace: str) -> None:
    """Show a pod with its containers, conditions, volumes and events."""
    from kubelet_trio.cli import reading

    reading.describe_pod(agent, name, namespace)


@cli.command("exec", context_settings={"ignore_unknown_options": False})
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-c", "--container", default="", help="The container, if there is more than one.")
@click.option("-i", "--stdin", is_flag=True, help="Pass the input to the command.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@_namespace
@_reads
def exec_(
    agent: AgentClient,
    name: str,
    command: tuple[str, ...],
    container: str,
    stdin: bool,
    tty: bool,
    namespace: str,
) -> None:
    """Run a command in a container, and exit with its code: `exec NAME -- COMMAND...`."""
    from kubelet_trio.cli import exec as executing
    from kubelet_trio.cli import reading

    path = reading.exec_path(agent, name, namespace, container)
    sys.exit(executing.run(agent, path, command, with_input=stdin, with_terminal=tty))


@cli.command()
@click.argument("name")
@click.argument("container_argument", metavar="[CONTAINER]", required=False, default="")
@click.option("-c", "--container", default="", help="The container, if there is more than one.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the container ends.")
@click.option("-p", "--previous", is_flag=True, help="The instance before this one.")
@click.option("--tail", type=int, default=-1, help="Only the last lines; -1 is all.")
@click.option("--since", default="", metavar="DURATION", help="Only newer lines, e.g. 5m.")
@click.option("--since-time", default="", metavar="TIME", help="Only newer lines (RFC 3339).")
@click.option("--limit-bytes", type=int, default=0, help="At most this many bytes.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@_namespace
@_reads
def logs(agent: AgentClient, name: str, namespace: str, **options: Any) -> None:
    """Print the log of a container."""
    from kubelet_trio.cli import reading

    reading.logs(agent, name, namespace, **options)


@cli.command()
@click.option("-w", "--watch", is_flag=True, help="Then print every event.")
@click.option("--for", "involved", default="", metavar="KIND/NAME", help="Only of this object.")
@_output
@_namespace
@_reads
def events(
    agent: AgentClient, watch: bool, involved: str, output: str | None, namespace: str
) -> None:
    """List the events of this node."""
    from kubelet_trio.cli import reading

    reading.events(agent, namespace, involved, output, watch=watch)


@cli.command()
@click.argument("what", type=click.Choice(["pods", "node"]), default="pods")
@click.option("--containers", is_flag=True, help="Each container of the pods.")
@click.option("--sort-by", type=click.Choice(["cpu", "memory"]), help="Highest usage first.")
@_output
@_namespace
@_reads
def top(
    agent: AgentClient,
    what: str,
    containers: bool,
    sort_by: str | None,
    output: str | None,
    namespace: str,
) -> None:
    """Show the current usage of pods, or of the node: CPU over a second, and memory."""
    from kubelet_trio.cli.top import top_node, top_pods

    if what == "node":
        top_node(agent, output)
    else:
        top_pods(agent, namespace, output, containers=containers, sort_by=sort_by)


@cli.command()
@click.option("--all", "every", is_flag=True, help="Also emptyDir, configMap and the like.")
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), default=None)
@_namespace
@_reads
def volumes(agent: AgentClient, every: bool, output: str | None, namespace: str) -> None:
    """List the volumes of claims and drivers: published to pods, and staged on the node."""
    from kubelet_trio.cli.volumes import volumes as list_volumes

    list_volumes(agent, namespace, output, every=every)


@cli.command()
@click.option("--machine", is_flag=True, help="This machine alone, without asking the agent.")
@click.option("--ascii", "in_ascii", is_flag=True, help="Draw with ASCII characters alone.")
@_output
@_reads
def topology(agent: AgentClient, machine: bool, in_ascii: bool, output: str | None) -> None:
    """Draw the machine: sockets, NUMA nodes, CPUs, memory, devices, and who has what."""
    from kubelet_trio.cli.topology import topology as draw_topology

    draw_topology(agent, output, alone=machine, in_ascii=in_ascii)


@cli.command()
@_output
@_reads
def tree(agent: AgentClient, output: str | None) -> None:
    """Show the agent's live supervision tree."""
    from kubelet_trio.cli import reading

    reading.tree(agent, output)


@cli.command()
@_output
@_reads
def status(agent: AgentClient, output: str | None) -> None:
    """Show the state of the agent, its runtime and its sources."""
    from kubelet_trio.cli import reading

    reading.status(agent, output)


@cli.command()
@_output
@_reads
def version(agent: AgentClient, output: str | None) -> None:
    """Show the version of this command and of the running agent."""
    from kubelet_trio.cli import reading

    reading.version(agent, output)
