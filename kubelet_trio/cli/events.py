"""`kubelet-trio events`: what happened on this node, as a table or as `-o` says."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from kubelet_trio.cli.ages import parse_time
from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.listing import Shown, Watched
from kubelet_trio.cli.podstate import Json, part
from kubelet_trio.cli.reading import UnknownPodError, find_pod
from kubelet_trio.cli.tables import EVENT_COLUMNS, WIDE_EVENT_COLUMNS, event_row

_KINDS = {"po": "Pod", "pod": "Pod", "pods": "Pod", "no": "Node", "node": "Node", "nodes": "Node"}


def events(
    agent: AgentClient, involved: str, types: Sequence[str], shown: Shown, *, watch: bool
) -> None:
    """Print events; with `watch` also every later one.

    Args:
        agent: the agent.
        involved: KIND/NAME, for the events of one object; empty: of all.
        types: only these, in lower case; empty: all.
        shown: which, and how.
        watch: whether to go on.

    Raises:
        ClientError: no such object, or no agent.
    """
    query = (
        _involved(agent, involved, shown.namespace) if involved else {"namespace": shown.namespace}
    )
    wide = shown.output.is_wide
    columns = EVENT_COLUMNS + (WIDE_EVENT_COLUMNS if wide else ())
    if watch:
        _watch_events(agent, query, types, shown, columns)
        return
    found = [e for e in agent.get("events", **query)["items"] if _has_type(e, types)]
    now = time.time()
    chosen = shown.choose(found, _order)
    if not chosen and shown.output.is_table:
        click.echo("No events found", err=True)
        return
    shown.print(chosen, columns, lambda event: event_row(event, now, wide=wide))


def _has_type(event: Json, types: Sequence[str]) -> bool:
    return not types or str(event.get("type", "")).lower() in types


def _order(event: Json) -> float:
    return parse_time(event.get("lastTimestamp")) or 0.0


def _involved(agent: AgentClient, involved: str, namespace: str) -> dict[str, str]:
    """Return the query for the events of one object.

    Raises `click.UsageError`, and `ClientError` if the object is unknown: it neither exists nor
    has any event left.
    """
    kind, slash, name = involved.partition("/")
    if not (kind and slash and name):
        raise click.UsageError(f'--for: "{involved}": expected KIND/NAME, such as pod/web')
    query = {"kind": _KINDS.get(kind.lower(), kind.capitalize()), "namespace": namespace}
    if query["kind"] == "Pod":
        try:
            meta = part(find_pod(agent, name, namespace), "metadata")
        except UnknownPodError:
            pass  # it is gone; its events may still be kept
        else:
            return {**query, "namespace": meta.get("namespace", ""), "name": meta.get("name", "")}
    query["name"] = name
    is_this_node = query["kind"] == "Node" and name == agent.get("status").get("node_name")
    if not is_this_node and not agent.get("events", **query)["items"]:
        raise ClientError(f'{query["kind"].lower()} "{name}" not found, nor any event of it')
    return query


def _watch_events(
    agent: AgentClient,
    query: dict[str, str],
    types: Sequence[str],
    shown: Shown,
    columns: Sequence[str],
) -> None:
    wide = shown.output.is_wide
    watched = Watched(shown, columns, lambda each: event_row(each, time.time(), wide=wide), _order)
    for change in agent.watch("events", **query):
        event = change.get("object")
        if event is None or (_has_type(event, types) and shown.chooses(event)):
            watched.take(event)
