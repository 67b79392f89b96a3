"""`kubelet-trio help`."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("command", required=False, default="")
@click.pass_context
def help_(context: click.Context, command: str) -> None:
    """Show the help of all commands, or of one."""
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    if not command:
        click.echo(root.get_help())
        return
    if command == "run":
        from kubelet_trio.config import run_help

        click.echo(run_help(), nl=False)
        return
    _, found, _ = root.command.resolve_command(root, [command])
    assert found is not None
    with click.Context(found, info_name=command, parent=root) as own:
        click.echo(found.get_help(own))
