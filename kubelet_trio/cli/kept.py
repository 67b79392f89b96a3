"""Pods that run on as they were, because their manifest is not valid now."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.tables import printable


def kept_pods(status: Json) -> dict[str, list[str]]:
    """Return the errors of the manifest of each such pod, by `namespace/name`. Pure."""
    found: dict[str, list[str]] = {}
    for source in items(status, "sources"):
        for problem in items(source, "problems"):
            for name in problem.get("pods") or ():
                line = f"{problem.get('where')}: {problem.get('message')}"
                found.setdefault(name, []).append(printable(line))
    return found


def note_kept(agent: AgentClient, shown: Iterable[Json]) -> None:
    """Print a note on stderr for each shown pod whose manifest has errors."""
    try:
        found = kept_pods(agent.get("status"))
    except ClientError:
        return  # the pods have been printed: a note is not worth an error
    for name in (_name(pod) for pod in shown):
        if name in found:
            rest = f" (and {len(found[name]) - 1} more)" if len(found[name]) > 1 else ""
            click.echo(f"note: {name} runs on as it was: {found[name][0]}{rest}", err=True)


def manifest_errors(status: Json, pod: Json) -> list[str]:
    """Return the errors of a pod's manifest; none if it is valid. Pure."""
    return kept_pods(status).get(_name(pod), [])


def _name(pod: Json) -> str:
    meta = part(pod, "metadata")
    return f"{meta.get('namespace')}/{meta.get('name')}"
