"""Commands that set a machine up as a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_FORMS = click.Choice(["json", "yaml"])
_root_option = click.option(
    "--root",
    default="/",
    metavar="DIR",
    help="Work on the machine whose files are below this directory.  [default: /]",
)
_ignore_option = click.option(
    "--ignore",
    multiple=True,
    metavar="CHECK",
    help="Go on although this check found a problem; `all` for every one.",
)


def _config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--config", default="", metavar="FILE", help="The agent's configuration."),
        click.option(
            "--container-runtime-endpoint", "endpoint", default="", help="Socket of the runtime."
        ),
    ):
        command = option(command)
    return command


@click.command()
@_config_options
@_root_option
@_ignore_option
@click.option("--root-dir", default=None, metavar="DIR", help="Root directory of the agent.")
@click.option("-o", "--output", type=_FORMS, default=None, help="Output format.")
@click.pass_obj
def check(outer: str | None, /, root_dir: str | None, **arguments: Any) -> None:
    """Check whether this machine can run pods, and how to cure what it lacks.

    Changes nothing. Exits with 1 if there is a problem.
    """
    from kubelet_trio.cli import install

    install.check(root_dir=root_dir or outer or "", **arguments)


_yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
_dry_option = click.option("--dry-run", is_flag=True, help="Only show the plan.")


@click.command()
@_config_options
@_root_option
@_ignore_option
@click.option("--pod-cidr", default=None, metavar="CIDR[,CIDR]", help="Addresses of the pods.")
@click.option("--pause-image", default=None, metavar="IMAGE", help="Image of pods' sandboxes.")
@click.option("--program", default=None, metavar="PATH", help="What the unit starts.")
@click.option("--now", is_flag=True, help="Start the agent, too.")
@click.option("--check", "only_check", is_flag=True, help="Only check, as `kubelet-trio check`.")
@click.option("--print-unit", is_flag=True, help="Only print the systemd unit.")
@_yes_option
@_dry_option
@click.option("-o", "--output", type=_FORMS, default=None, help="Output format of --check.")
def install(only_check: bool, print_unit: bool, output: str | None, **arguments: Any) -> None:
    """Set this machine up as a node.

    Writes what the machine lacks: the agent's configuration, a pod network, settings of containerd
    and of the kernel, a systemd unit. Shows its plan first, and changes no file of yours without
    saying so. A second run completes or updates the first one.
    """
    from kubelet_trio.cli import install

    if print_unit:
        install.print_unit(arguments["program"])
    elif only_check:
        names = ("config", "endpoint", "root", "ignore")
        install.check(output=output, **{name: arguments[name] for name in names})
    else:
        install.install(**arguments)


@click.command()
@_root_option
@click.option("--reset", "with_reset", is_flag=True, help="End and remove the pods, too.")
@_yes_option
@_dry_option
def uninstall(**arguments: Any) -> None:
    """Stop the agent, and remove what `install` has written.

    The pods run on. Files that were changed since they were installed are left.
    """
    from kubelet_trio.cli import install

    install.uninstall(**arguments)


@click.command()
@_config_options
@click.option("--root-dir", default="", metavar="DIR", help="Root directory of the agent.")
@click.option(
    "--grace-period",
    "grace",
    type=click.IntRange(0),
    default=30,
    metavar="SECONDS",
    help="Limit of the pods' grace periods.  [default: 30]",
)
@click.option("--force", is_flag=True, help="Stop the agent, if it runs.")
@_yes_option
@_dry_option
@click.pass_context
def reset(context: click.Context, /, root_dir: str, **arguments: Any) -> None:
    """Remove what an agent has made on this machine.

    Ends and removes its pods, unmounts their volumes, removes cgroups, state, logs and addresses.
    Images, manifests, the configuration and other containers stay.
    """
    from kubelet_trio.cli import install

    install.reset(root_dir=root_dir or context.obj or "", **arguments)
