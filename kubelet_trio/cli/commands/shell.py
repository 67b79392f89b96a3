"""Commands for shells and manuals."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kubelet_trio.cli.completion import SHELLS, script


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and names in a shell.

    For this shell: `. <(kubelet-trio completion bash)`.
    """
    click.echo(script(shell, context.find_root().command), nl=False)


@click.command()
@click.argument("directory", required=False, metavar="[DIR]")
@click.pass_context
def man(context: click.Context, directory: str | None) -> None:
    """Write the man pages into man1 and man8 of a directory; without one, print the main page."""
    from kubelet_trio.cli.manual import man_pages

    pages = man_pages(context.find_root())
    if directory is None:
        click.echo(pages["kubelet-trio.1"], nl=False)
        return
    try:
        for name, text in pages.items():
            path = Path(directory) / f"man{name[-1]}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as exc:
        click.echo(f"error: cannot write {exc.filename}: {exc.strerror}", err=True)
        sys.exit(1)
