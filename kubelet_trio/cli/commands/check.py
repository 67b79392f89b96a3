"""Commands that check files, without an agent."""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE|DIR|-...")
@click.option("-o", "--output", type=click.Choice(["json"]), default=None, help="For programs.")
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
def validate(files: tuple[str, ...], output: str | None, strict: bool) -> None:
    """Check manifests and KubeletConfigurations: exits with 1 if one is not valid."""
    from kubelet_trio.cli.validate import validate as check

    sys.exit(check(files, output, strict=strict))
