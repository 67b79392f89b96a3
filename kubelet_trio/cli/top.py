"""`kubelet-trio top`: current resource usage of pods or the node, as `kubectl top` prints it.

The numbers come from the agent's `/stats/summary`. It computes CPU usage between two readings, so
the command requests it twice, a little more than a second apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

import click

from kubelet_trio.cli.client import AgentClient
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.tables import Table, as_text

_APART = 1.1  # seconds: responses within one second share a reading
_UNKNOWN = "<unknown>"
_USE = ("CPU(cores)", "MEMORY(bytes)")
_NODE_COLUMNS = ("NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)")


def top_pods(
    agent: AgentClient,
    namespace: str,
    output: str | None,
    *,
    containers: bool,
    sort_by: str | None,
) -> None:
    """Print the usage of pods, or of each of their containers."""
    pods = [
        pod
        for pod in items(_summary(agent), "pods")
        if namespace in ("", part(pod, "podRef").get("namespace"))
    ]
    pods.sort(key=_name)
    if output:
        click.echo(as_text(pods, output), nl=False)
        return
    if not pods:
        click.echo("No resources found", err=True)
        return
    used = [(pod, of) for pod in pods for of in (_containers(pod) if containers else [pod])]
    if sort_by is not None:
        figure = _cpu if sort_by == "cpu" else _memory
        used.sort(key=lambda pair: figure(pair[1]) or 0, reverse=True)
    rows = []
    for pod, of in used:
        own = (str(of.get("name", "")),) if containers else ()
        rows.append((*_name(pod), *own, cores(_cpu(of)), mebibytes(_memory(of))))
    _print(("NAMESPACE", *(("POD", "NAME") if containers else ("NAME",)), *_USE), rows)


def top_node(agent: AgentClient, output: str | None) -> None:
    """Print the node's usage, also in percent of this machine."""
    node = part(_summary(agent), "node")
    if output:
        click.echo(as_text(node, output), nl=False)
        return
    cpu, memory = _cpu(node), _memory(node)
    available = part(node, "memory").get("availableBytes")
    # The summary has no capacity; the kubelet computes available as capacity less working set.
    whole = None if memory is None or available is None else memory + available
    row = (
        str(node.get("nodeName", "")),
        cores(cpu),
        percent(cpu, 10**9 * (os.cpu_count() or 1)),
        mebibytes(memory),
        percent(memory, whole),
    )
    _print(_NODE_COLUMNS, [row])


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


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(columns)
    table.fit(rows)
    click.echo("\n".join([table.header(), *table.rows(rows)]))
