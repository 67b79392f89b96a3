"""`kubelet-trio volumes`: what is published to pods and staged on the node, and how full it is."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kubelet_trio.cli.client import AgentClient
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.tables import Table, as_list, as_text

COLUMNS = ("NAMESPACE", "POD", "VOLUME", "KIND", "CLAIM", "STATE", "USED", "CAPACITY", "USE%")
WIDE_COLUMNS = ("MODE", "ACCESS", "INODES%", "HEALTH", "PV", "HANDLE", "PATH")

# They exist for their pod alone: neither a claim nor a driver provides them (`volumes.layout`).
_OWN = frozenset(("configMap", "downwardAPI", "emptyDir", "projected", "secret"))
_NONE = "<none>"
_UNKNOWN = "<unknown>"
_UNITS = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def volumes(agent: AgentClient, namespace: str, output: str | None, *, every: bool) -> None:
    """Print the volumes as a table, JSON or YAML; `every` includes those of the pods' own."""
    found = [
        row
        for row in items(agent.get("volumes"), "items")
        if (every or row.get("kind") not in _OWN) and _is_in(row, namespace)
    ]
    if output in ("json", "yaml"):
        click.echo(as_text(as_list(found), output), nl=False)
        return
    if not found:
        click.echo("No resources found", err=True)
        return
    table = Table(COLUMNS + (WIDE_COLUMNS if output else ()))
    rows = [volume_row(row, wide=bool(output)) for row in found]
    table.fit(rows)
    click.echo("\n".join([table.header(), *table.rows(rows)]))


def _is_in(row: Json, namespace: str) -> bool:
    """Whether a row belongs to a namespace; a staged volume to those of its users."""
    users: Sequence[str] = row.get("users") or ()
    return (
        not namespace
        or row.get("namespace") == namespace
        or any(user.startswith(f"{namespace}/") for user in users)
    )


def volume_row(row: Json, *, wide: bool = False) -> tuple[str, ...]:
    """Return a volume's cells under `COLUMNS`, and `WIDE_COLUMNS` if `wide`."""
    use = part(row, "use")
    cells = (
        row.get("namespace") or _NONE,
        # A pod that is gone has only a UID; a staged volume has no pod.
        row.get("pod") or row.get("uid") or _NONE,
        # Without a pod it has no name in one: it is known by its own.
        row.get("volume") or row.get("persistent_volume") or row.get("handle") or _NONE,
        row.get("driver") or row.get("kind", ""),
        row.get("claim") or _NONE,
        _state(row),
        size(use.get("used_bytes")),
        size(use.get("capacity_bytes")),
        _share(use.get("used_bytes"), use.get("capacity_bytes")),
    )
    if not wide:
        return cells
    return (
        *cells,
        row.get("mode") or "Filesystem",
        "ro" if row.get("read_only") else "rw",
        _share(use.get("inodes_used"), use.get("inodes")),
        _health(use),
        row.get("persistent_volume") or _NONE,
        row.get("handle") or _NONE,
        row.get("path", ""),
    )


def _state(row: Json) -> str:
    users = len(row.get("users") or ())
    state = str(row.get("state", ""))
    # A staged volume that no pod uses is unstaged within a minute.
    return f"{state}({users})" if state == "Staged" else state


def _health(use: Json) -> str:
    abnormal = use.get("abnormal")
    if abnormal is None:
        return _UNKNOWN
    return f"Abnormal: {use.get('message', '')}" if abnormal else "Healthy"


def size(count: int | None) -> str:
    """Return bytes in the largest binary unit that leaves at least 1, with one decimal below 10."""
    if count is None:
        return _UNKNOWN
    if count < 1024:
        return str(count)
    amount, units = count / 1024, list(_UNITS)
    while round(amount, 1) >= 1024:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}{units[0]}" if amount < 9.95 else f"{amount:.0f}{units[0]}"


def _share(used: int | None, whole: int | None) -> str:
    return _UNKNOWN if used is None or not whole else f"{100 * used // whole}%"
