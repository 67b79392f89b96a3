"""The commands that only read: request from the agent, and print."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from kubelet_trio.cli.ages import parse_since, parse_time
from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.tables import (
    EVENT_COLUMNS,
    POD_COLUMNS,
    WIDE_COLUMNS,
    Table,
    as_list,
    as_text,
    event_row,
    pod_row,
)
from kubelet_trio.durations import human_duration


class UnknownPodError(ClientError):
    """The node has no pod of that name."""


def pods(
    agent: AgentClient, names: Sequence[str], namespace: str, output: str | None, *, watch: bool
) -> None:
    """Print pods as a table, JSON or YAML; with `watch` also every change."""
    if names and watch:
        raise ClientError("name no pods with --watch, or one namespace")
    if names:
        _print_pods([find_pod(agent, name, namespace) for name in names], output, named=True)
    elif watch:
        _watch_pods(agent, namespace, output)
    else:
        found = agent.get("pods", namespace=namespace)["items"]
        _print_pods(sorted(found, key=_pod_order), output)
        if not found and output in (None, "wide"):
            click.echo("No resources found", err=True)


def find_pod(agent: AgentClient, name: str, namespace: str) -> Json:
    """Return the pod of that name, in any namespace if none is given.

    Static pods are called `<name>-<node>`; the name in the manifest is accepted, too. Raises
    `ClientError`.
    """
    found = agent.get("pods", namespace=namespace)["items"]
    # NAME, NAMESPACE/NAME, and pod/NAME as for kubectl.
    space, _, bare = name.rpartition("/")
    if space.rpartition("/")[2] not in ("", "pod", "pods", "po"):
        namespace = space
    matches = [pod for pod in found if _is_called(pod, bare, namespace)]
    spaces = sorted({part(pod, "metadata").get("namespace", "") for pod in matches})
    if len(spaces) > 1:
        raise ClientError(
            f'pod "{bare}" is in several namespaces, choose by -n: {", ".join(spaces)}'
        )
    if not matches:
        raise UnknownPodError(f'pods "{bare}" not found')
    exact = [pod for pod in matches if part(pod, "metadata").get("name") == bare]
    candidates = exact or matches
    # While a pod replaces another of the same name, return the new one.
    return min(candidates, key=lambda pod: bool(part(pod, "metadata").get("deletionTimestamp")))


def _is_called(pod: Json, name: str, namespace: str) -> bool:
    meta = part(pod, "metadata")
    if namespace and meta.get("namespace") != namespace:
        return False
    node = str(part(pod, "spec").get("nodeName") or "").lower()
    return meta.get("name") in (name, f"{name}-{node}")


def _pod_order(pod: Json) -> tuple[str, str]:
    meta = part(pod, "metadata")
    return meta.get("namespace", ""), meta.get("name", "")


def _print_pods(found: Sequence[Json], output: str | None, *, named: bool = False) -> None:
    if output in ("json", "yaml"):
        thing = found[0] if named and len(found) == 1 else as_list(list(found))
        click.echo(as_text(thing, output), nl=False)
    elif found:
        table = Table(POD_COLUMNS + (WIDE_COLUMNS if output else ()))
        rows = [pod_row(pod, time.time(), wide=bool(output)) for pod in found]
        table.fit(rows)
        click.echo("\n".join([table.header(), *table.rows(rows)]))


def _watch_pods(agent: AgentClient, namespace: str, output: str | None) -> None:
    table = Table(POD_COLUMNS + (WIDE_COLUMNS if output else ()))
    # The current pods are printed together, sorted and aligned; None: they have been printed.
    first: list[Json] | None = []
    for change in agent.watch("pods", namespace=namespace):
        pod = change.get("object")
        if pod is None:  # a bookmark: all current pods have been sent
            rows = [
                pod_row(p, time.time(), wide=bool(output))
                for p in sorted(first or (), key=_pod_order)
            ]
            table.fit(rows)
            if output not in ("json", "yaml"):
                click.echo("\n".join([table.header(), *table.rows(rows)]))
            first = None
        elif output in ("json", "yaml"):
            click.echo("---\n" * (output == "yaml") + as_text(pod, output), nl=False)
        elif first is not None:
            first.append(pod)
        else:
            click.echo(table.rows([pod_row(pod, time.time(), wide=bool(output))])[0])


def describe_pod(agent: AgentClient, name: str, namespace: str) -> None:
    """Print the description of a pod with its events."""
    from kubelet_trio.cli.describe import describe_pod as describe

    pod = find_pod(agent, name, namespace)
    meta = part(pod, "metadata")
    found = agent.get(
        "events", kind="Pod", namespace=meta.get("namespace", ""), name=meta.get("name", "")
    )["items"]
    # Not those of an earlier pod with the same name.
    mine = [e for e in found if part(e, "involvedObject").get("uid") in (None, meta.get("uid"))]
    click.echo(describe(pod, mine, time.time()), nl=False)


def logs(agent: AgentClient, name: str, namespace: str, **options: Any) -> None:
    """Print a container's log to stdout, byte for byte."""
    pod = find_pod(agent, name, namespace)
    meta = part(pod, "metadata")
    container = options["container"] or options["container_argument"] or _default_container(pod)
    query = {key: "1" for key in ("follow", "previous", "timestamps") if options[key]}
    if options["tail"] >= 0:
        query["tailLines"] = str(options["tail"])
    if options["limit_bytes"]:
        query["limitBytes"] = str(options["limit_bytes"])
    if options["since"]:
        try:
            query["sinceSeconds"] = str(parse_since(options["since"]))
        except ValueError as exc:
            raise ClientError(f"--since: {exc}") from exc
    if options["since_time"]:
        query["sinceTime"] = options["since_time"]
    space, pod_name = meta.get("namespace", ""), meta.get("name", "")
    # Bytes, not text: a log may have any encoding. Flushed, so that `-f` shows lines immediately.
    for piece in agent.stream("logs", space, pod_name, container, **query):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def exec_path(
    agent: AgentClient, name: str, namespace: str, container: str
) -> tuple[str, str, str]:
    """Return namespace, pod and container of a command's target."""
    pod = find_pod(agent, name, namespace)
    meta = part(pod, "metadata")
    chosen = container or _default_container(pod)
    return meta.get("namespace", ""), meta.get("name", ""), chosen


def _default_container(pod: Json) -> str:
    """Return the container to use if none is named; print it if there were several."""
    spec = part(pod, "spec")
    every = [
        str(container.get("name", ""))
        for name in ("containers", "initContainers", "ephemeralContainers")
        for container in items(spec, name)
    ]
    # The annotation comes first, then the first container, as for kubectl logs and exec.
    chosen = part(pod, "metadata", "annotations").get("kubectl.kubernetes.io/default-container")
    name = chosen if chosen in every else every[0]
    if len(every) > 1 and name != chosen:
        click.echo(f'Defaulted container "{name}" out of: {", ".join(every)}', err=True)
    return name


def events(
    agent: AgentClient, namespace: str, involved: str, output: str | None, *, watch: bool
) -> None:
    """Print events as a table, JSON or YAML; with `watch` also every later one."""
    query = _involved(agent, involved, namespace) if involved else {"namespace": namespace}
    if watch:
        _watch_events(agent, query, output)
        return
    found = sorted(agent.get("events", **query)["items"], key=_event_order)
    if output:
        click.echo(as_text(as_list(found), output), nl=False)
    elif found:
        table = Table(EVENT_COLUMNS)
        rows = [event_row(event, time.time()) for event in found]
        table.fit(rows)
        click.echo("\n".join([table.header(), *table.rows(rows)]))
    else:
        click.echo("No events found", err=True)


_KINDS = {"po": "Pod", "pod": "Pod", "pods": "Pod", "no": "Node", "node": "Node", "nodes": "Node"}


def _involved(agent: AgentClient, involved: str, namespace: str) -> dict[str, str]:
    """Return the query for the events of one object.

    Raises `ClientError` if the object is unknown: it neither exists nor has any event left.
    """
    kind, slash, name = involved.partition("/")
    if not (kind and slash and name):
        raise ClientError(f'--for: "{involved}": expected KIND/NAME, such as pod/web')
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


def _event_order(event: Json) -> float:
    return parse_time(event.get("lastTimestamp")) or 0.0


def _watch_events(agent: AgentClient, query: dict[str, str], output: str | None) -> None:
    table = Table(EVENT_COLUMNS)
    # As in `_watch_pods`: those kept are printed together, after the bookmark.
    first: list[Json] | None = []
    for change in agent.watch("events", **query):
        event = change.get("object")
        if event is not None and output:
            click.echo("---\n" * (output == "yaml") + as_text(event, output), nl=False)
        elif event is None and not output:
            rows = [event_row(e, time.time()) for e in sorted(first or (), key=_event_order)]
            table.fit(rows)
            click.echo("\n".join([table.header(), *table.rows(rows)]))
            first = None
        elif event is not None and first is not None:
            first.append(event)
        elif event is not None:
            click.echo(table.rows([event_row(event, time.time())])[0])


def tree(agent: AgentClient, output: str | None) -> None:
    """Print the supervision tree."""
    if output:
        click.echo(as_text(agent.get("tree"), output), nl=False)
    else:
        click.echo(agent.text("tree", format="text"), nl=False)


def status(agent: AgentClient, output: str | None) -> None:
    """Print the agent's own state."""
    state = agent.get("status")
    if output:
        click.echo(as_text(state, output), nl=False)
        return
    click.echo("\n".join(_status_lines(state, time.time())))


def _status_lines(state: Json, now: float) -> list[str]:
    runtime = part(state, "runtime")
    about = f"{runtime.get('name', '')} {runtime.get('version', '')}".strip()
    lines = [
        f"Node:      {state.get('node_name', '')}",
        f"Root dir:  {state.get('root_dir', '')}",
        f"Running:   {human_duration(now - state.get('started_at', now))}",
        f"Runtime:   {about or '<unknown>'} at {runtime.get('endpoint', '')}: "
        f"{runtime.get('problem') or 'ok'}",
        "Checks:",
    ]
    for name, reason in part(state, "checks").items():
        lines.append(f"  {name}: {reason or 'ok'}")
    lines.append("Sources:")
    for source in items(state, "sources"):
        count = source.get("pods", 0)
        shown = f"{count} pod{'s' * (count != 1)}" if source.get("delivered") else "not read yet"
        lines.append(f"  {source.get('name')}: {shown}")
        lines += [f"    {p.get('where')}: {p.get('message')}" for p in items(source, "problems")]
    if not_served := [port for port in items(state, "ports") if port.get("problem")]:
        lines.append("Not served:")
        lines += [f"  {port.get('name')}: {port.get('problem')}" for port in not_served]
    if dropped := state.get("events_dropped"):
        lines.append(f"Events dropped: {dropped}")
    remains = part(state, "remains")
    lines += [f"Not removed: {pod}: {why}" for pod, why in remains.items()]
    lines += [f"Note: {note}" for note in state.get("notes") or ()]
    return lines


def version(agent: AgentClient, output: str | None) -> None:
    """Print the versions of this command and of the agent; a missing agent is no error."""
    from kubelet_trio import __version__

    try:
        server, problem = agent.get("version"), ""
    except ClientError as exc:
        server, problem = None, str(exc)
    if output:
        click.echo(as_text({"client": {"version": __version__}, "agent": server}, output), nl=False)
        return
    click.echo(f"Client: {__version__}")
    if server:
        click.echo(f"Agent:  {server['version']} (behaves as kubelet {server['kubernetes']})")
    else:
        click.echo(f"Agent:  {problem}")
