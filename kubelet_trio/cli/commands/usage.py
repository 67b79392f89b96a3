"""Commands that show what is used, and of what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kubelet_trio.cli.commands.options import (
    all_namespaces_option,
    namespace_option,
    one_namespace,
    output_option,
    parse_selector,
    reads,
)

if TYPE_CHECKING:
    from kubelet_trio.cli.client import AgentClient


_PODS, _NODES = ("pods", "pod", "po"), ("nodes", "node", "no")


@click.command()
@click.argument("what", nargs=-1, metavar="[pods [NAME...] | node]")
@click.option("--containers", is_flag=True, help="Each container of the pods.")
@click.option("--sort-by", type=click.Choice(["cpu", "memory"]), help="Highest usage first.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Pods with these labels.")
@click.option("--no-headers", is_flag=True, help="Without the line of headers.")
@output_option
@all_namespaces_option
@namespace_option
@reads
def top(
    agent: AgentClient, what: tuple[str, ...], selector: str, no_headers: bool, **options: Any
) -> None:
    """Show the current usage of pods, or of the node: CPU over a second, and memory."""
    from kubelet_trio.cli.top import TopOptions, top_node, top_pods

    kind, *names = what or ("pods",)
    if kind not in (*_PODS, *_NODES):
        raise click.UsageError(f'"{kind}": expected pods or node, as `top pods {kind}`')
    chosen = TopOptions(
        names,
        one_namespace(options),
        parse_selector(selector),
        headers=not no_headers,
        **options,
    )
    if kind in _NODES:
        top_node(agent, chosen)
    else:
        top_pods(agent, chosen)


@click.command()
@click.option("--all", "every", is_flag=True, help="Also emptyDir, configMap and the like.")
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), default=None)
@namespace_option
@reads
def volumes(agent: AgentClient, every: bool, output: str | None, namespace: str) -> None:
    """List the volumes of claims and drivers: published to pods, and staged on the node."""
    from kubelet_trio.cli.volumes import volumes as list_volumes

    list_volumes(agent, namespace, output, every=every)


@click.command()
@click.option("--machine", is_flag=True, help="This machine alone, without asking the agent.")
@click.option("--ascii", "in_ascii", is_flag=True, help="Draw with ASCII characters alone.")
@output_option
@reads
def topology(agent: AgentClient, machine: bool, in_ascii: bool, output: str | None) -> None:
    """Draw the machine: sockets, NUMA nodes, CPUs, memory, devices, and who has what."""
    from kubelet_trio.cli.topology import topology as draw_topology

    draw_topology(agent, output, alone=machine, in_ascii=in_ascii)
