"""`kubelet-trio profile`."""

from __future__ import annotations

from pathlib import Path

import click

from kubelet_trio.cli.client import AgentClient, ClientError

_NAMES = {"cpu": "profile", "heap": "heap", "tasks": "goroutine"}  # in the agent's API


def profile(
    agent: AgentClient, kind: str, seconds: int, path: str | None, *, as_text: bool
) -> None:
    """Take a profile, and write it to a file; as text to stdout unless a file is named.

    Raises `ClientError`.
    """
    query = {"seconds": str(seconds)} | ({"debug": "1"} if as_text else {})
    if kind != "tasks":
        click.echo(f"Profiling for {seconds} s ...", err=True)
    body = b"".join(agent.stream("profile", _NAMES[kind], **query))
    if not body:
        raise ClientError("another profile is being taken: try again later")
    if as_text and path is None:
        click.echo(body.decode(errors="replace"), nl=False)
        return
    file = Path(path or f"kubelet-trio-{kind}.pb.gz")
    try:
        file.write_bytes(body)
    except OSError as exc:
        raise ClientError(f"{file}: {exc.strerror}") from exc
    click.echo(f"{file}: {len(body)} bytes" + ("" if as_text else f"; see: go tool pprof {file}"))
