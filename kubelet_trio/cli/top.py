"""`kubelet-trio top`: current resource usage of pods or the node, as `kubectl top` prints it.

The numbers come from the agent's `/stats/summary`. It computes CPU usage between two readings, so
the command requests it twice, a little more than a second apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.reading import find_pod
from kubelet_trio.cli.selectors import Selector
from kubelet_trio.cli.tables import Table, as_text

_APART = 1.1  # seconds: responses within one second share a reading
_UNKNOWN = "<unknown>"
_USE = ("CPU(cores)", "MEMORY(bytes)")
_NODE_COLUMNS = ("NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)")


@dataclass(frozen=True, slots=True)
class TopOptions:
    """What `top` shows, and how."""

    names: Sequence[str] = ()  # of pods; empty: all
    namespace: str = ""
    labels: Selector | None = None
    containers: bool = False
    sort_by: str | None = None
    output: str | None = None  # json, yaml, or None for the table
    headers: bool = True


def top_pods(agent: AgentClient, options: TopOptions) -> None:
    """Print the usage of pods, or of each of their containers. Raises `ClientError`."""
    wanted = _wanted_pods(agent, options)
    pods = [
        pod
        for pod in items(_summary(agent), "pods")
        if options.namespace in ("", part(pod, "podRef").get("namespace"))
        and (wanted is None or part(pod, "podRef").get("uid") in wanted)
    ]
    pods.sort(key=_name)
    if options.output:
        click.echo(as_text(pods, options.output), nl=False)
        return
    if not pods:
        click.echo("No resources found", err=True)
        return
    used = [(pod, of) for pod in pods for of in (_containers(pod) if options.containers else [pod])]
    if options.sort_by is not None:
        figure = _cpu if options.sort_by == "cpu" else _memory
        used.sort(key=lambda pair: figure(pair[1]) or 0, reverse=True)
    rows = []
    for pod, of in used:
        own = (str(of.get("name", "")),) if options.containers else ()
        rows.append((*_name(pod), *own, cores(_cpu(of)), mebibytes(_memory(of))))
    names = ("POD", "NAME") if options.containers else ("NAME",)
    table = Table(("NAMESPACE", *names, *_USE))
    click.echo(table.text(rows, headers=options.headers), nl=False)


def _wanted_pods(agent: AgentClient, options: TopOptions) -> set[str] | None:
    """Return the UIDs of the pods to show; None: all. Raises `ClientError`."""
    if options.names:
        named = [find_pod(agent, name, options.namespace) for name in options.names]
    elif options.labels is not None:
        every = agent.get("pods", namespace=options.namespace)["items"]
        named = [p for p in every if options.labels(part(p, "metadata").get("labels") or {})]
    else:
        return None
    return {str(part(pod, "metadata").get("uid")) for pod in named}


def top_node(agent: AgentClient, options: TopOptions) -> None:
    """Print the node's usage, also in percent of this machine. Raises `ClientError`."""
    node = part(_summary(agent), "node")
    own = str(node.get("nodeName", ""))
    if other := [name for name in options.names if name != own]:
        raise ClientError(f'nodes "{other[0]}" not found: this agent is "{own}"')
    if options.output:
        click.echo(as_text(node, options.output), nl=False)
        return
    cpu, memory = _cpu(node), _memory(node)
    available = part(node, "memory").get("availableBytes")
    # The summary has no capacity; the kubelet computes available as capacity less working set.
    whole = None if memory is None or available is None else memory + available
    row = (
        own,
        cores(cpu),
        percent(cpu, 10**9 * (os.cpu_count() or 1)),
        mebibytes(memory),
        percent(memory, whole),
    )
    click.echo(Table(_NODE_COLUMNS).text([row], headers=options.headers), nl=False)


def cores(nanocores: int | None) -> str:
    """Return CPU usage in thousandths of a core, rounded up like a quantity."""
    return _UNKNOWN if nanocores is None else f"{-(-nanocores // 10**6)}m"


def mebibytes(count: int | None) -> str:
    """Return bytes as kubectl shows memory."""
    return _UNKNOWN if count is None else f"{count // 2**20}Mi"


def percent(used: int | None, whole: int | None) -> str:
    """Return a share in whole percent."""
    return _UNKNOWN if used is None or not whole else f"{100 * used // whole}%"


def _summary(agent: AgentClient) -> Json:
    # CPU usage is the difference of two readings; the first request takes the first one.
    agent.get("stats")
    time.sleep(_APART)
    summary: Json = agent.get("stats")
    return summary


def _name(pod: Json) -> tuple[str, str]:
    ref = part(pod, "podRef")
    return ref.get("namespace", ""), ref.get("name", "")


def _containers(pod: Json) -> Iterator[Json]:
    yield from sorted(items(pod, "containers"), key=lambda each: str(each.get("name", "")))


def _cpu(of: Json) -> int | None:
    return part(of, "cpu").get("usageNanoCores")


def _memory(of: Json) -> int | None:
    return part(of, "memory").get("workingSetBytes")
