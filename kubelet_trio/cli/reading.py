"""The commands that only read: request from the agent, and print."""

from __future__ import annotations

import time

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.colour import paint, paint_tree
from kubelet_trio.cli.kept import manifest_errors
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.progress import pull_texts
from kubelet_trio.cli.tables import as_text, has_colour
from kubelet_trio.durations import human_duration


class UnknownPodError(ClientError):
    """The node has no pod of that name."""


def find_pod(agent: AgentClient, name: str, namespace: str) -> Json:
    """Return the pod of that name, in any namespace if none is given.

    Static pods are called `<name>-<node>`; the name in the manifest is accepted, too. Raises
    `ClientError`.
    """
    found = agent.get("pods", namespace=namespace)["items"]
    # NAME, NAMESPACE/NAME, and pod/NAME as for kubectl.
    space, _, bare = name.rpartition("/")
    kind, _, inner = space.partition("/")
    if kind in ("pod", "pods", "po"):
        space = inner
    namespace = space or namespace
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
    try:
        status = agent.get("status")
    except ClientError:
        status = {}  # the pod is there: what is known besides is not worth an error
    now = time.time()
    pulls = pull_texts(status, str(meta.get("uid")), now)
    progress = [f"{container}: {text}" for container, text in pulls.items()]
    why = _why(agent, meta)
    click.echo(describe(pod, mine, now, manifest_errors(status, pod), progress, why), nl=False)


def _why(agent: AgentClient, meta: Json) -> list[str]:
    """Return the reasons that the agent gives for a pod's state, none if it cannot be asked."""
    from kubelet_trio.cli.why import why_texts

    try:
        return why_texts(agent.get("why", meta.get("namespace", ""), meta.get("name", "")))
    except ClientError:
        return []  # the pod has gone meanwhile, or the agent is older


def exec_path(
    agent: AgentClient, name: str, namespace: str, container: str
) -> tuple[str, str, str]:
    """Return namespace, pod and container of a command's target."""
    pod = find_pod(agent, name, namespace)
    meta = part(pod, "metadata")
    chosen = container or default_container(pod)
    return meta.get("namespace", ""), meta.get("name", ""), chosen


def container_spec(agent: AgentClient, path: tuple[str, str, str]) -> Json:
    """Return the spec of the container at namespace, pod, name; empty if the pod has none such."""
    namespace, pod, name = path
    spec = part(agent.get("pods", namespace, pod), "spec")
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return next((c for kind in kinds for c in items(spec, kind) if c.get("name") == name), {})


def default_container(pod: Json) -> str:
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


def tree(agent: AgentClient, output: str | None) -> None:
    """Print the supervision tree."""
    if output:
        click.echo(as_text(agent.get("tree"), output), nl=False)
    else:
        drawn = agent.text("tree", format="text")
        click.echo(paint_tree(drawn) if has_colour() else drawn, nl=False)


def status(agent: AgentClient, output: str | None) -> None:
    """Print the agent's own state."""
    state = agent.get("status")
    if output:
        click.echo(as_text(state, output), nl=False)
        return
    click.echo("\n".join(status_lines(state, time.time())))


def status_lines(state: Json, now: float) -> list[str]:
    """Return the lines of `status`."""
    runtime = part(state, "runtime")
    about = f"{runtime.get('name', '')} {runtime.get('version', '')}".strip()
    lines = [
        f"Node:      {state.get('node_name', '')}",
        f"Root dir:  {state.get('root_dir', '')}",
        f"Running:   {human_duration(now - state.get('started_at', now))}",
        f"Runtime:   {about or '<unknown>'} at {runtime.get('endpoint', '')}: "
        f"{_verdict(runtime.get('problem'))}",
        *_cure(runtime),
        "Checks:",
    ]
    for name, reason in part(state, "checks").items():
        lines.append(f"  {name}: {_verdict(reason)}")
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


def _verdict(problem: str | None) -> str:
    text = problem or "ok"
    return paint("bad" if problem else "good", text) if has_colour() else text


def _cure(runtime: Json) -> list[str]:
    """Return what to try where the container runtime does not answer."""
    endpoint = str(runtime.get("endpoint", ""))
    if not runtime.get("problem") or not endpoint.startswith(("unix:", "/")):
        return []
    service = "crio" if "crio" in endpoint else "containerd"
    return [f"           is {service} running? systemctl status {service}"]


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
