"""`get` and `describe`: kubectl's words for what this node has."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import click

from kubelet_trio.cli.client import AgentClient
from kubelet_trio.cli.listing import Shown

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "pods": ("pods", "pod", "po", "all"),
    "nodes": ("nodes", "node", "no"),
    "events": ("events", "event", "ev"),
    "images": ("images", "image"),
    "volumes": ("volumes", "volume", "vol"),
}
_KINDS = {alias: kind for kind, aliases in _ALIASES.items() for alias in aliases}


def get(agent: AgentClient, what: Sequence[str], shown: Shown, *, watch: bool, every: bool) -> None:
    """List objects: `TYPE`, `TYPE NAME...` or `TYPE/NAME...`.

    Raises:
        ClientError: there is no such object, or no agent.
        click.UsageError: no such type, or an option that the type does not have.
    """
    if not what:
        raise click.UsageError(f"name a type of object: {', '.join(_ALIASES)}")
    kind, names = _kind_and_names(what, need_kind=True)
    if watch and kind not in ("pods", "events"):
        raise click.UsageError(f"-w shows changes of pods and events, not of {kind}")
    if kind == "pods":
        from kubelet_trio.cli.listing import pods

        pods(agent, names, shown, watch=watch)
    elif kind == "nodes":
        from kubelet_trio.cli.nodes import nodes

        nodes(agent, names, shown)
    elif kind == "images":
        from kubelet_trio.cli.images import images

        images(agent, names, shown)
    elif names:
        raise click.UsageError(f"name no {kind}: all are listed; choose by --field-selector")
    elif kind == "events":
        from kubelet_trio.cli.events import events

        events(agent, "", (), shown, watch=watch)
    else:
        from kubelet_trio.cli.volumes import volumes

        if not (shown.output.is_table or shown.output.form in ("json", "yaml")):
            raise click.UsageError(f"-o {shown.output.form} is not for volumes: use wide or json")
        volumes(agent, shown.namespace, shown.output.form or None, every=every)


def describe(agent: AgentClient, what: Sequence[str], namespace: str) -> None:
    """Print all details of pods, or of the node. A name alone is a pod's.

    Raises:
        ClientError: there is no such object, or no agent.
        click.UsageError: no such type.
    """
    from kubelet_trio.cli.reading import describe_pod

    kind, names = _kind_and_names(what, need_kind=False)
    if kind == "nodes":
        from kubelet_trio.cli.nodes import describe_node

        describe_node(agent, names)
    elif kind == "pods":
        if not names:
            from kubelet_trio.cli.listing import pod_order

            every = sorted(agent.get("pods", namespace=namespace)["items"], key=pod_order)
            names = ["{namespace}/{name}".format(**pod["metadata"]) for pod in every]
        for index, name in enumerate(names):
            click.echo("\n\n" * bool(index), nl=False)
            describe_pod(agent, name, namespace)
    else:
        raise click.UsageError(f"describe shows pods and the node; kubelet-trio get {kind}")


def _kind_and_names(what: Sequence[str], *, need_kind: bool) -> tuple[str, list[str]]:
    """Return the type and the names of `pods`, `pods web db` or `pod/web pod/db`."""
    first, slash, _ = what[0].partition("/")
    kind = _KINDS.get(first.lower())
    if slash and kind is not None:
        names = []
        for word in what:
            own, slash, name = word.partition("/")
            if not slash or _KINDS.get(own.lower()) != kind:
                raise click.UsageError(f'"{word}": expected {first}/NAME, as the others')
            names.append(name)
        return kind, names
    if kind is not None and (need_kind or len(what) > 1 or first.lower() not in ("event", "all")):
        return kind, list(what[1:])
    if not need_kind:
        return "pods", list(what)
    near = difflib.get_close_matches(first.lower(), _KINDS, 1)
    hint = f'did you mean "{_KINDS[near[0]]}"?' if near else f"there are {', '.join(_ALIASES)}"
    raise click.UsageError(f'this node does not list "{first}": {hint}')
