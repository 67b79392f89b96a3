"""`kubelet-trio apply` and `delete`: manifests of an agent without an API server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.manifests import Given, Key, ManifestDirectory, read_given
from kubelet_trio.cli.podstate import Json, grace_left, items, part, summarize
from kubelet_trio.cli.progress import Progress, pull_texts
from kubelet_trio.cli.reading import find_pod
from kubelet_trio.sources import load_manifest

_POLL = 0.25  # s
_SUFFIXES = (".yaml", ".yml", ".json")


def apply(agent: AgentClient, files: Sequence[str], *, dry: bool, wait: float | None) -> None:
    """Write the objects of manifests into the agent's directory; validate all of them first.

    `wait` is the limit in seconds for their pods to be ready, 0: no limit, None: do not wait.
    Raises `ClientError`.
    """
    status = agent.get("status")
    directory = ManifestDirectory.of_agent(status)
    node = str(status["node_name"])
    every = _read_all(files, node)
    for given in every:
        directory.put(given, writes=False)  # refuse before anything is written
    awaited: dict[str, tuple[Key, Path]] = {}
    known = {part(pod, "metadata").get("uid") for pod in agent.get("pods")["items"]}
    for given in every:
        verb, path = directory.put(given, writes=not dry)
        click.echo(f"{given.key} {verb}{' (dry run)' if dry else ''}")
        if given.key.kind == "Pod" and not dry:
            held = path.read_bytes()
            pods = load_manifest(held, str(path), node_name=node, is_known=known.__contains__).pods
            uids = [str(p.metadata.uid) for p in pods if p.metadata and p.metadata.uid]
            awaited[uids[0]] = given.key, path
    if wait is not None and awaited:
        _until(wait, lambda: _not_ready(agent, awaited))


def delete(
    agent: AgentClient, names: Sequence[str], files: Sequence[str], namespace: str, *, waits: bool
) -> None:
    """Remove manifests from the agent's directory. Raises `ClientError`."""
    status = agent.get("status")
    directory = ManifestDirectory.of_agent(status)
    node = str(status["node_name"]).lower()
    keys = [given.key for given in _read_all(files, str(status["node_name"]))]
    keys += [_static_key(find_pod(agent, name, namespace), node) for name in names]
    missing = [key for key in keys if not directory.remove(key, keys, writes=False)]
    for key in keys:
        # One file may hold several of them: with the first it is gone.
        if key not in missing:
            directory.remove(key, keys, writes=True)
            click.echo(f"{key} deleted")
    if waits:
        gone = {f"{k.name}-{node}": k for k in keys if k.kind == "Pod" and k not in missing}
        _until(0.0, lambda: _not_gone(agent, gone))
    if missing:
        raise ClientError("\n".join(f"{key} not found in {directory.path}" for key in missing))


def _read_all(files: Sequence[str], node: str) -> list[Given]:
    found: list[Given] = []
    for name in files:
        for text, origin in read_texts(name):
            for given in read_given(text, origin, node):
                if given.key in [other.key for other in found]:
                    raise ClientError(f"{origin}: {given.key} is in an earlier file, too")
                found.append(given)
    return found


def read_texts(name: str) -> Iterator[tuple[bytes, str]]:
    """Yield the manifests at a path, in a directory or on stdin, with their origins.

    Raises `ClientError`.
    """
    if name == "-":
        yield sys.stdin.buffer.read(), "<stdin>"
        return
    path = Path(name)
    try:
        paths = [path]
        if path.is_dir():
            paths = [p for p in sorted(path.iterdir()) if p.suffix in _SUFFIXES]
        for each in paths:
            yield each.read_bytes(), str(each)
    except OSError as exc:
        raise ClientError(f"cannot read {exc.filename}: {exc.strerror}") from exc


def _static_key(pod: Json, node: str) -> Key:
    """Return the key of a pod in its manifest. Raises `ClientError` if no file has it."""
    meta = part(pod, "metadata")
    name = str(meta.get("name"))
    source = part(meta, "annotations").get("kubernetes.io/config.source", "api")
    if source == "api":
        raise ClientError(
            f"pod {name} is one of the API server's: kubectl delete pod -n "
            f"{meta.get('namespace')} {name}"
        )
    if source != "file":
        raise ClientError(f"pod {name} comes from the source {source}: remove it there")
    return Key("Pod", str(meta.get("namespace")), name.removesuffix(f"-{node}"))


def _until(limit: float, left: Callable[[], str]) -> None:
    """Wait until nothing is left; show what is left. Raises `ClientError` after `limit` s."""
    deadline, progress = time.monotonic() + limit, Progress()
    while text := left():
        progress.show(text)
        if limit and time.monotonic() > deadline:
            progress.clear()
            raise ClientError(f"timed out after {limit:g} s: {text}")
        time.sleep(_POLL)
    progress.clear()


def _not_ready(agent: AgentClient, awaited: Mapping[str, tuple[Key, Path]]) -> str:
    """Return what the pods still wait for, "" if all are ready. Raises `ClientError`."""
    pods = {part(p, "metadata").get("uid"): p for p in agent.get("pods")["items"]}
    status = agent.get("status")
    problems = [p for s in items(status, "sources") for p in items(s, "problems")]
    waiting: list[str] = []
    for uid, (key, path) in awaited.items():
        for problem in problems:
            if str(problem.get("where", "")).startswith(str(path)):
                raise ClientError(f"{key}: {problem.get('where')}: {problem.get('message')}")
        # On other than terminals each change is a line: no seconds, which would be one a second.
        pulls = pull_texts(status, uid, time.time(), timed=sys.stderr.isatty())
        text = _lacks(key, pods.get(uid), pulls)
        waiting += [text] if text else []
    return ", ".join(waiting)


def _lacks(key: Key, pod: Json | None, pulls: Mapping[str, str] = MappingProxyType({})) -> str:
    if pod is None:
        return f"{key}: waits for the agent, or for an earlier pod of this name to end"
    status = part(pod, "status")
    if status.get("phase") == "Failed":
        raise ClientError(f"{key} failed: {status.get('reason', '')} {status.get('message', '')}")
    conditions = items(status, "conditions")
    is_ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    if is_ready or status.get("phase") == "Succeeded":
        return ""
    why = [
        str(part(c, "state", "waiting").get("message") or "")
        for kind in ("initContainerStatuses", "containerStatuses")
        for c in items(status, kind)
    ]
    summary = summarize(pod, time.time())
    message = ", ".join(pulls.values()) or next((text for text in why if text), "")
    return f"{key}: {summary.status} {summary.ready}{f': {message}' if message else ''}"


def _not_gone(agent: AgentClient, gone: Mapping[str, Key]) -> str:
    now, left = time.time(), []
    for pod in agent.get("pods")["items"]:
        meta = part(pod, "metadata")
        key = gone.get(str(meta.get("name")))
        if key is not None and key.namespace == meta.get("namespace"):
            left.append(f"{key}: Terminating{_grace(grace_left(pod, now))}")
    return ", ".join(left)


def _grace(left: float | None) -> str:
    # On other than terminals each change is a line: a countdown would be one a second.
    if left is None or not sys.stderr.isatty():
        return ""
    return f", {left:.0f} s of grace left" if left else ", its grace period is over"
