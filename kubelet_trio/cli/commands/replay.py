"""The command that replays a recording, without an agent."""

from __future__ import annotations

import click


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--pod", default="", metavar="NAMESPACE/NAME", help="Only what concerns this pod.")
@click.option(
    "--until",
    default="",
    metavar="TIME",
    help="Stop then: 2026-01-31T12:00:00Z, Unix seconds, or +90s after the beginning.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: one object.")
@click.option(
    "--tolerance",
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="By how much a decision may come earlier or later.",
)
def replay(file: str, pod: str, until: str, as_json: bool, tolerance: str) -> None:
    """Replay a recording of `record save`: run the whole agent on it, in virtual time.

    Prints what the agent decides, when and why, and touches nothing of this machine. Exits with 0
    if it decides as it did, 1 if not, with the first difference, 2 if FILE cannot be read.
    """
    from kubelet_trio.cli import replay as replaying

    chosen = replaying.options(pod, until, tolerance)
    click.get_current_context().exit(replaying.replay(file, chosen, as_json=as_json))
