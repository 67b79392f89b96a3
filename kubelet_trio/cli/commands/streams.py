"""Commands that talk with a container."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kubelet_trio.cli.commands.options import completed_by, namespace_option, reads

if TYPE_CHECKING:
    from kubelet_trio.cli.client import AgentClient


@click.command("exec", context_settings={"ignore_unknown_options": False})
@click.argument("name", shell_complete=completed_by("pod_names"))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-c",
    "--container",
    default="",
    help="The container, if there is more than one.",
    shell_complete=completed_by("container_names"),
)
@click.option("-i", "--stdin", is_flag=True, help="Pass the input to the command.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@namespace_option
@reads
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


@click.command()
@click.argument("name")
@click.option("-c", "--container", default="", help="The container, if there is more than one.")
@click.option("-i", "--stdin", is_flag=True, help="Pass the input to the container.")
@click.option("-t", "--tty", is_flag=True, help="The input is a terminal.")
@namespace_option
@reads
def attach(
    agent: AgentClient, name: str, container: str, stdin: bool, tty: bool, namespace: str
) -> None:
    """Connect with the main process of a container, until it ends or Ctrl-C."""
    from kubelet_trio.cli import exec as executing
    from kubelet_trio.cli import reading

    path = reading.exec_path(agent, name, namespace, container)
    if tty and not reading.container_spec(agent, path).get("tty"):
        click.echo(f"Unable to use a TTY - container {path[2]} did not allocate one", err=True)
        tty = False
    if tty:
        click.echo("If you don't see a command prompt, try pressing enter.", err=True)
    executing.attach(agent, path, with_input=stdin, with_terminal=tty)


@click.command()
@click.argument("name", shell_complete=completed_by("pod_names"))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--image",
    default="",
    help="Image of the new container; with a COMMAND it may be left out: that of the target, else "
    "of the pod's default container.",
)
@click.option(
    "--target", default="", metavar="CONTAINER", help="Join the processes of this container."
)
@click.option("-c", "--container", default="", help="Name of the new container.")
@click.option("-i", "--stdin", is_flag=True, help="Attach, and pass the input to the container.")
@click.option("-t", "--tty", is_flag=True, help="Give the container a terminal; needs -i.")
@click.option(
    "--profile",
    type=click.Choice(["legacy", "general", "baseline", "netadmin", "restricted", "sysadmin"]),
    default="general",
    help="What it may do, as of kubectl's profiles.  [default: general, which may trace processes]",
)
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="An environment variable.")
@click.option("--arguments", is_flag=True, help="COMMAND are arguments of the image's entrypoint.")
@click.option(
    "--image-pull-policy",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    default=None,
    help="When to pull.  [default: as for any container of that image]",
)
@namespace_option
@reads
def debug(
    agent: AgentClient,
    name: str,
    command: tuple[str, ...],
    image: str,
    target: str,
    container: str,
    stdin: bool,
    tty: bool,
    profile: str,
    env: tuple[str, ...],
    arguments: bool,
    image_pull_policy: str | None,
    namespace: str,
) -> None:
    """Add a container to a running pod: `debug NAME -it --image=busybox --target=CONTAINER`.

    With -i it exits with the container's code, else it prints its name. The container stays with
    the pod until the pod ends, and is never restarted; the pod is not. For static pods and those of
    `run-pod` alone: pods of an API server are kubectl's, and the line for it is printed.
    """
    from kubelet_trio.cli import debug as debugging

    if tty and not stdin:
        raise click.UsageError("-t needs -i")
    pairs = [text.partition("=") for text in env]
    if wrong := [key for key, sign, _ in pairs if not (key and sign)]:
        raise click.UsageError(f"--env {wrong[0]}: expected KEY=VALUE")
    wanted = debugging.Wanted(
        image=image,
        target=target,
        name=container,
        with_input=stdin,
        with_terminal=tty,
        profile=profile,
        env=[(key, value) for key, _, value in pairs],
        command=command,
        only_arguments=arguments,
        pull_policy=image_pull_policy or "",
    )
    sys.exit(debugging.debug(agent, name, namespace, wanted))


@click.command("port-forward")
@click.argument("name")
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@click.option(
    "--address",
    default="localhost",
    metavar="ADDRESS,...",
    help="Local addresses to listen on.  [default: localhost]",
)
@namespace_option
@reads
def port_forward(
    agent: AgentClient, name: str, ports: tuple[str, ...], address: str, namespace: str
) -> None:
    """Forward local ports to a pod, until Ctrl-C. REMOTE is a number, or a name in the pod.

    LOCAL is the same port if it is not given; with `:REMOTE` or `0:REMOTE` any free one.
    """
    from kubelet_trio.cli import forward, reading

    pod = reading.find_pod(agent, name, namespace)
    forwards = [forward.parse_forward(text, pod) for text in ports]
    meta = pod["metadata"]
    addresses = [one.strip() for one in address.split(",")]
    forward.run(agent, meta["namespace"], meta["name"], forwards, addresses)


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("-c", "--container", default="", help="The container, if there is more than one.")
@click.option(
    "--no-preserve", is_flag=True, help="Do not keep owner and permissions in the container."
)
@namespace_option
@reads
def cp(
    agent: AgentClient,
    source: str,
    target: str,
    container: str,
    no_preserve: bool,
    namespace: str,
) -> None:
    """Copy files to or from a container: `cp POD:PATH LOCAL`, or `cp LOCAL POD:PATH`.

    The container needs a `tar` command. Symbolic links are not made here, and nothing is written
    outside the target.
    """
    from kubelet_trio.cli import copy, reading

    theirs, ours = copy.parse_place(source), copy.parse_place(target)
    if bool(theirs.pod) == bool(ours.pod):
        raise click.UsageError("one of the two must be POD:PATH, the other a path of this machine")
    path = reading.exec_path(agent, theirs.pod or ours.pod, namespace, container)
    if theirs.pod:
        copy.from_pod(agent, path, theirs.path, ours.path)
    else:
        copy.to_pod(agent, path, theirs.path, ours.path, keeps_owner=not no_preserve)
