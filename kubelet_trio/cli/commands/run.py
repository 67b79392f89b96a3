"""`kubelet-trio run`, where it was not the first word of the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Run(click.Command):
    """Completes the flags, which are not click's."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from kubelet_trio.cli.completion import run_flags

        return [CompletionItem(flag) for flag in run_flags(incomplete)]


@click.command(
    cls=_Run,
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
