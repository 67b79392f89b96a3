"""`kubelet-trio restart`: asks the agent to restart containers of a pod in place."""

from __future__ import annotations

from collections.abc import Mapping

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.podstate import Json, items, part


def restart(agent: AgentClient, pod: Json, container: str, *, waits: bool) -> None:
    """Restart all containers of a pod, or one; with `waits` return once they run and are ready.

    Raises `ClientError` if the agent refuses, the pod goes, or a new instance ends.
    """
    meta = part(pod, "metadata")
    namespace, name = str(meta.get("namespace")), str(meta.get("name"))
    query = {"container": container} if container else {}
    asked = agent.post("restart", namespace, name, **query)["containers"]
    before = {name: instance for name, (instance, _) in _instances(pod).items() if name in asked}
    click.echo(f"pod/{name}: restarting {', '.join(asked)}")
    if not waits:
        return
    for change in agent.watch("pods", namespace=namespace):
        seen = change.get("object")
        if seen is None or part(seen, "metadata").get("uid") != meta.get("uid"):
            continue
        if change.get("type") == "DELETED":
            raise ClientError(f"pod {name} has been removed meanwhile")
        if _is_done(seen, before):
            click.echo(f"pod/{name} restarted")
            return
    raise ClientError("the agent has ended meanwhile")


def _instances(pod: Json) -> Mapping[str, tuple[str, Json]]:
    """Return the id and state of each container by name."""
    status = part(pod, "status")
    return {
        str(found.get("name")): (str(found.get("containerID", "")), part(found, "state"))
        for kind in ("initContainerStatuses", "containerStatuses")
        for found in items(status, kind)
    }


def _is_done(pod: Json, before: Mapping[str, str]) -> bool:
    """Return whether new instances run and the pod is ready. Raises `ClientError` if one ended."""
    now = _instances(pod)
    for name, old in before.items():
        instance, state = now.get(name, ("", {}))
        if instance in ("", old):
            return False
        if "terminated" in state:
            code = part(state, "terminated").get("exitCode", 0)
            raise ClientError(f'container "{name}" was restarted and ended by exit code {code}')
        if "running" not in state:
            return False
    conditions = items(part(pod, "status"), "conditions")
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
