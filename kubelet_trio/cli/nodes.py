"""`get node` and `describe node`: this node, as kubectl shows it.

Source: printNode in pkg/printers, describeNode in k8s.io/kubectl/pkg/describe/describe.go.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from kubelet_trio.cli.ages import age, long_time
from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.describe import event_lines, mapping_lines
from kubelet_trio.cli.listing import Shown
from kubelet_trio.cli.output import amount_of
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.tables import Table, printable

COLUMNS = ("NAME", "STATUS", "ROLES", "AGE", "VERSION")
WIDE_COLUMNS = ("INTERNAL-IP", "OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME")
_NONE = "<none>"
_ROLE = "node-role.kubernetes.io/"
_NANO = 10**9
_INFO = (
    ("Machine ID", "machineID"),
    ("System UUID", "systemUUID"),
    ("Boot ID", "bootID"),
    ("Kernel Version", "kernelVersion"),
    ("OS Image", "osImage"),
    ("Operating System", "operatingSystem"),
    ("Architecture", "architecture"),
    ("Container Runtime Version", "containerRuntimeVersion"),
    ("Kubelet Version", "kubeletVersion"),
)


def nodes(agent: AgentClient, names: Sequence[str], shown: Shown) -> None:
    """Print this node. Raises `ClientError`."""
    node = {"apiVersion": "v1", "kind": "Node", **part(_page(agent, names), "object")}
    wide, now = shown.output.is_wide, time.time()
    columns = COLUMNS + (WIDE_COLUMNS if wide else ())
    shown.print(
        shown.choose([node], lambda _: 0),
        columns,
        lambda each: node_row(each, now, wide=wide),
        is_one=bool(names),
    )


def describe_node(agent: AgentClient, names: Sequence[str]) -> None:
    """Print all details of this node, its pods' requests and its events. Raises `ClientError`."""
    page = _page(agent, names)
    name = part(page, "object", "metadata").get("name", "")
    events = agent.get("events", kind="Node", name=name)["items"]
    click.echo("\n".join(description(page, events, time.time())))


def _page(agent: AgentClient, names: Sequence[str]) -> Json:
    page: Json = agent.get("node")
    own = part(page, "object", "metadata").get("name", "")
    if other := [name for name in names if name != own]:
        raise ClientError(f'nodes "{other[0]}" not found: this agent is "{own}"')
    return page


def node_row(node: Json, now: float, *, wide: bool = False) -> tuple[str, ...]:
    """Return a node's cells under `COLUMNS`, and `WIDE_COLUMNS` if `wide`."""
    meta, status = part(node, "metadata"), part(node, "status")
    ready = [c.get("status") for c in items(status, "conditions") if c.get("type") == "Ready"]
    state = {"True": "Ready", "False": "NotReady"}.get(str(ready[0]) if ready else "", "Unknown")
    if part(node, "spec").get("unschedulable"):
        state += ",SchedulingDisabled"
    info = part(status, "nodeInfo")
    row = (
        str(meta.get("name", "")),
        state,
        _roles(meta),
        age(meta.get("creationTimestamp"), now),
        str(info.get("kubeletVersion", "")),
    )
    if not wide:
        return row
    internal = [a for a in items(status, "addresses") if a.get("type") == "InternalIP"]
    return (
        *row,
        str(internal[0].get("address")) if internal else _NONE,
        str(info.get("osImage", "")),
        str(info.get("kernelVersion", "")),
        str(info.get("containerRuntimeVersion", "")),
    )


def _roles(meta: Json) -> str:
    labels = meta.get("labels") or {}
    return ",".join(sorted(k.removeprefix(_ROLE) for k in labels if k.startswith(_ROLE))) or _NONE


def description(page: Json, events: Sequence[Json], now: float) -> list[str]:
    """Return the lines of `describe node`."""
    node = part(page, "object")
    meta, spec, status = part(node, "metadata"), part(node, "spec"), part(node, "status")
    taints = [_taint(taint) for taint in items(spec, "taints")] or [_NONE]
    fields = [
        ("Name", [str(meta.get("name", ""))]),
        ("Roles", [_roles(meta)]),
        ("Labels", mapping_lines(meta.get("labels"), "=")),
        ("Annotations", mapping_lines(meta.get("annotations"), ": ")),
        ("CreationTimestamp", [long_time(meta.get("creationTimestamp")) or "<not registered>"]),
        ("Taints", taints),
        ("Unschedulable", [str(bool(spec.get("unschedulable"))).lower()]),
    ]
    lines = [
        f"{title + ':' if index == 0 else '':<20}{value}"
        for title, values in fields
        for index, value in enumerate(values)
    ]
    lines += _conditions(items(status, "conditions"))
    addresses = [(str(a.get("type")), a.get("address")) for a in items(status, "addresses")]
    lines += ["Addresses:", *_pairs(addresses)]
    for title, key in (("Capacity", "capacity"), ("Allocatable", "allocatable")):
        lines += [f"{title}:", *_pairs(sorted(part(status, key).items()))]
    info = part(status, "nodeInfo")
    lines += ["System Info:", *_pairs([(title, info.get(key, "")) for title, key in _INFO])]
    lines += _used(items(page, "pods"), part(status, "allocatable"))
    lines += ["Eviction Thresholds:", *_thresholds(items(page, "eviction"))]
    lines += ["Resource Managers:", *_pairs(sorted(part(page, "managers").items()))]
    lines += event_lines(events, now)
    return [printable(line).rstrip() for line in lines]


def _taint(taint: Json) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"


def _pairs(pairs: Sequence[tuple[str, Any]]) -> list[str]:
    width = max((len(name) for name, _ in pairs), default=0) + 3
    return [f"  {name + ':':<{width}}{value}" for name, value in pairs]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = Table(columns, gap=2)
    lines = table.text([["-" * len(column) for column in columns], *rows]).splitlines()
    return [f"  {line}" for line in lines]


def _conditions(conditions: Sequence[Json]) -> list[str]:
    columns = ("Type", "Status", "LastHeartbeatTime", "LastTransitionTime", "Reason", "Message")
    rows = [
        (
            str(c.get("type", "")),
            str(c.get("status", "")),
            long_time(c.get("lastHeartbeatTime")),
            long_time(c.get("lastTransitionTime")),
            str(c.get("reason", "")),
            str(c.get("message", "")),
        )
        for c in conditions
    ]
    return ["Conditions:", *_table(columns, rows)]


def _used(pods: Sequence[Json], allocatable: Json) -> Iterator[str]:
    live = sorted(
        (pod for pod in pods if not pod.get("is_terminal")),
        key=lambda pod: (str(pod.get("namespace")), str(pod.get("name"))),
    )
    whole = {name: amount_of(str(value)) or 0.0 for name, value in allocatable.items()}

    def shares(pod: Json, which: str, resource: str) -> str:
        amount = part(pod, which).get(resource, 0) / _NANO
        return f"{_amount(resource, amount)} ({_percent(amount, whole.get(resource))}%)"

    yield f"Non-terminated Pods:  ({len(live)} in total)"
    columns = ("Namespace", "Name", "CPU Requests", "CPU Limits", "Memory Requests")
    rows = [
        (
            str(pod.get("namespace", "")),
            str(pod.get("name", "")),
            *(
                shares(pod, which, resource)
                for resource in ("cpu", "memory")
                for which in ("requests", "limits")
            ),
        )
        for pod in live
    ]
    yield from _table((*columns, "Memory Limits"), rows)
    yield "Allocated resources:"
    yield "  (Total limits may be over 100 percent, i.e., overcommitted.)"
    first: tuple[str, ...] = ("cpu", "memory", "ephemeral-storage")
    shown = [r for r in first if r in whole]
    shown += sorted(r for r in whole if r not in (*shown, "pods"))
    totals = {
        which: {r: sum(part(pod, which).get(r, 0) for pod in live) for r in shown}
        for which in ("requests", "limits")
    }
    yield from _table(
        ("Resource", "Requests", "Limits"),
        [(r, shares(totals, "requests", r), shares(totals, "limits", r)) for r in shown],
    )


def _amount(resource: str, amount: float) -> str:
    """Return an amount as Kubernetes writes it: CPU in thousandths, bytes in binary units."""
    if resource == "cpu":
        milli = round(amount * 1000)
        return f"{milli}m" if milli % 1000 else str(milli // 1000)
    count = round(amount)
    for power, suffix in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{suffix}"
    return str(count)


def _percent(amount: float, whole: float | None) -> int:
    return int(100 * amount / whole) if whole else 0


def _thresholds(thresholds: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for each in thresholds:
        grace = each.get("grace_seconds") or 0.0
        value = str(each.get("value"))
        # Inodes and processes are numbers; the others are bytes.
        is_bytes = str(each.get("signal")).lower().endswith(("memory.available", "fs.available"))
        if value.isdigit() and is_bytes:
            value = _amount("memory", int(value))
        text = f"{each.get('signal')} < {value}"
        text += f" for {grace:g}s (soft)" if grace else " (hard)"
        if each.get("min_reclaim"):
            text += f", reclaims at least {each['min_reclaim']}"
        rows.append(f"  {text}")
    return rows or [f"  {_NONE}"]
