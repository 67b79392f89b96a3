"""Completion of names in a shell, and the scripts that ask for it.

A shell runs `kubelet-trio` with `_KUBELET_TRIO_COMPLETE` for every TAB; click finds the place in
the line, and the functions here ask the agent. Without an agent they offer nothing, and print
nothing: a message would stand in the middle of the user's line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from kubelet_trio.cli.podstate import Json, items, part

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_KUBELET_TRIO_COMPLETE"
_PATIENCE = 1.0  # seconds: a TAB must not hang because the agent does
_TYPES = ("pods", "nodes", "events", "images", "volumes")


def script(shell: str, command: click.Command) -> str:
    """Return the script that a shell sources."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    made = found(command, {}, "kubelet-trio", _VARIABLE)
    # Not `source()`: for bash it runs a bash, to look at its version.
    return f"{made.source_template % made.source_vars()}\n"


def pod_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a pod, also after `pod/`."""
    kind, slash, start = incomplete.rpartition("/")
    names = (str(part(pod, "metadata").get("name", "")) for pod in _pods(ctx))
    return [f"{kind}{slash}{name}" for name in _starting(names, start)]


def container_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a container, of the pod that the line names if it does."""
    wanted = str(ctx.params.get("name") or "").rpartition("/")[2]
    pods = list(_pods(ctx))
    named = [pod for pod in pods if _is_called(pod, wanted)]
    lists = ("containers", "initContainers", "ephemeralContainers")
    names = (
        str(container.get("name", ""))
        for pod in (named or pods)
        for each in lists
        for container in items(part(pod, "spec"), each)
    )
    return _starting(names, incomplete)


def namespaces(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete a namespace that has pods on this node."""
    ctx.params.pop("namespace", None)
    names = (str(part(pod, "metadata").get("namespace", "")) for pod in _pods(ctx))
    return _starting(names, incomplete)


def types_and_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the words of `get`: a type, then names of pods."""
    words: Sequence[str] = ctx.params.get(param.name or "") or ()
    if words or "/" in incomplete:
        return pod_names(ctx, param, incomplete)
    return _starting(_TYPES, incomplete)


def objects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the words of `describe`: a type, or the name of a pod."""
    words: Sequence[str] = ctx.params.get(param.name or "") or ()
    own = [] if words or "/" in incomplete else _starting(("node", "pod"), incomplete)
    return [*own, *pod_names(ctx, param, incomplete)]


def run_flags(incomplete: str) -> list[str]:
    """Complete a flag of `run`."""
    from kubelet_trio.config import run_flag_groups

    heads = (head for entries in run_flag_groups().values() for head, _ in entries)
    return _starting((head.split(", ")[-1].split(" ")[0] for head in heads), incomplete)


def _starting(names: Iterable[str], start: str) -> list[str]:
    return sorted({name for name in names if name.startswith(start)})


def _is_called(pod: Json, name: str) -> bool:
    node = str(part(pod, "spec").get("nodeName") or "").lower()
    return bool(name) and part(pod, "metadata").get("name") in (name, f"{name}-{node}")


def _pods(ctx: click.Context) -> Sequence[Json]:
    from kubelet_trio.cli.client import AgentClient, ClientError
    from kubelet_trio.cli.local import default_root

    given = ctx.params.get("root_dir") or ctx.find_root().params.get("root_dir")
    query: dict[str, Any] = {"namespace": ctx.params.get("namespace") or ""}
    agent = AgentClient(str(given or default_root()), _PATIENCE)
    try:
        return list(agent.get("pods", **query)["items"])
    except (ClientError, OSError):
        return ()
