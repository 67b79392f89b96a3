"""The command that serves the page of several nodes."""

from __future__ import annotations

import sys

import click

from kubelet_trio.cli.local import default_root


@click.command()
@click.argument("nodes", metavar="[NAME=PLACE]...", nargs=-1)
@click.option(
    "--port", default=0, type=click.IntRange(0, 65535), help="Port of 127.0.0.1; 0: any free one."
)
@click.option("--root-dir", default=None, metavar="DIR", help="The agent, if no node is named.")
def fleet(nodes: tuple[str, ...], port: int, root_dir: str | None) -> None:
    """Serve one page of several nodes, to this user, until Ctrl-C.

    PLACE is unix:DIR, the root directory of an agent on this machine, or http://localhost:PORT,
    where its --ui-port listens or ssh forwards that of another machine.
    """
    import trio

    from kubelet_trio.cli.client import ClientError
    from kubelet_trio.cli.fleet import parse_node, serve_fleet

    root = root_dir or click.get_current_context().obj or default_root()
    try:
        named = [parse_node(text) for text in nodes or (f"local=unix:{root}",)]
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    twice = {node.name for node in named if [n.name for n in named].count(node.name) > 1}
    if twice:
        raise click.UsageError(f"{min(twice)!r} names two nodes")
    try:
        trio.run(serve_fleet, named, port)
    except ClientError as exc:
        raise click.ClickException(str(exc)) from exc
    except KeyboardInterrupt:
        sys.exit(130)
