"""`kubelet-trio debug`: adds an ephemeral container to a pod of this node, and attaches to it.

The words and defaults are those of `kubectl debug` (pkg/cmd/debug of kubectl).
"""

from __future__ import annotations

import random
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from kubelet_trio.cli import exec as executing
from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.podstate import TERMINAL_PHASES, Json, items, part
from kubelet_trio.cli.progress import Progress, pull_texts
from kubelet_trio.cli.reading import find_pod

# Without vowels and look-alikes, as apimachinery's rand.String.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_POLL = 0.1  # s
_MOMENT = 1.0  # s within which a status shows that a container has ended
_TARGETS = ("initContainers", "containers")
_ALL_LISTS = (*_TARGETS, "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the command."""

    image: str = ""
    target: str = ""
    name: str = ""
    with_input: bool = False
    with_terminal: bool = False
    profile: str = "general"
    env: Sequence[tuple[str, str]] = ()
    command: Sequence[str] = ()
    only_arguments: bool = False
    pull_policy: str = ""


def debug(agent: AgentClient, name: str, namespace: str, wanted: Wanted) -> int:
    """Add the container; with an input, attach to it and return its exit code, else print its name.

    Raises `ClientError`.
    """
    if name.startswith(("node/", "nodes/")):
        raise ClientError(
            "pods are debugged here: for the node itself open a shell on it, or with an API server "
            f"kubectl debug {name} -it --image=IMAGE"
        )
    pod = find_pod(agent, name, namespace)
    meta = part(pod, "metadata")
    place = str(meta.get("namespace")), str(meta.get("name"))
    refuse_api_pod(pod, wanted)
    made = container(pod, wanted)
    if not wanted.image:
        click.echo(f'Using image "{made["image"]}" of container "{_model(pod, wanted)}".', err=True)
    called = str(agent.send(msgspec.json.encode(made), "debug", *place)["container"])
    if not wanted.with_input:
        click.echo(called)
        return 0
    if not wanted.name:
        click.echo(f"Defaulting debug container name to {called}.", err=True)
    serve = _with_terminal if wanted.with_terminal else _with_pipes
    return serve(agent, str(meta.get("uid")), place, called)


def _with_terminal(agent: AgentClient, uid: str, place: tuple[str, str], name: str) -> int:
    """Attach our terminal to the container; return its exit code. Raises `ClientError`."""
    has_written = False
    if "running" in _wait_started(agent, uid, place, name):
        click.echo("If you don't see a command prompt, try pressing enter.", err=True)
        try:
            has_written = executing.attach(
                agent, (*place, name), with_input=True, with_terminal=True
            )
        except ClientError as exc:
            click.echo(f"warning: couldn't attach, its log follows: {exc}", err=True)
    code = _exit_code(agent, uid, place, name)
    if not has_written:  # it had ended before we were attached
        _print_log(agent, place, name)
    return code


def _with_pipes(agent: AgentClient, uid: str, place: tuple[str, str], name: str) -> int:
    """Pass our input to the container and print its log; return its exit code.

    The log, unlike its streams, has what it wrote before anyone could attach. Raises `ClientError`.
    """
    if "running" in _wait_started(agent, uid, place, name):
        # A daemon: the container may end without reading all of our input.
        threading.Thread(target=_feed, args=(agent, place, name), daemon=True).start()
    _print_log(agent, place, name, follow="1")
    return _exit_code(agent, uid, place, name)


def _feed(agent: AgentClient, place: tuple[str, str], name: str) -> None:
    try:
        executing.feed(agent, (*place, name))
    except ClientError as exc:
        time.sleep(_MOMENT)
        if "running" in _state(agent.get("pods", *place), name):  # else it has just ended
            click.echo(f"warning: couldn't pass the input to container {name}: {exc}", err=True)


def refuse_api_pod(pod: Json, wanted: Wanted) -> None:
    """Raise `ClientError` with the line for kubectl, if the API server has the pod."""
    meta = part(pod, "metadata")
    if part(meta, "annotations").get("kubernetes.io/config.source", "api") != "api":
        return
    words = ["kubectl", "debug", "-n", str(meta.get("namespace")), str(meta.get("name"))]
    words += [f"--image={wanted.image or _image(pod, wanted)}"]
    words += [f"--target={wanted.target}"] if wanted.target else []
    words += [f"--container={wanted.name}"] if wanted.name else []
    words += [f"--profile={wanted.profile}"] if wanted.profile != "general" else []
    words += [f"--image-pull-policy={wanted.pull_policy}"] if wanted.pull_policy else []
    words += [f"--env={key}={value}" for key, value in wanted.env]
    words += ["-i"] * wanted.with_input + ["-t"] * wanted.with_terminal
    words += ["--arguments"] if wanted.only_arguments else []
    words += ["--", *wanted.command] if wanted.command else []
    raise ClientError(
        f"pod {meta.get('name')} is one of the API server's, which alone may add containers to it: "
        f"{shlex.join(words)}"
    )


def container(pod: Json, wanted: Wanted) -> dict[str, Any]:
    """Return the ephemeral container as JSON. Raises `ClientError`."""
    if not wanted.image and not wanted.command:
        raise ClientError(
            "name an image: --image IMAGE; or a command, to run it with the image of the container"
        )
    names = [str(c.get("name")) for kind in _ALL_LISTS for c in items(part(pod, "spec"), kind)]
    targets = [str(c.get("name")) for kind in _TARGETS for c in items(part(pod, "spec"), kind)]
    if wanted.target and wanted.target not in targets:
        raise ClientError(f"--target {wanted.target}: the pod has: {', '.join(targets)}")
    made: dict[str, Any] = {
        "name": wanted.name or _free_name(names),
        "image": wanted.image or _image(pod, wanted),
        "terminationMessagePolicy": "File",
        "stdin": wanted.with_input,
        # Unlike kubectl's: the end of a pipe is the end of what the command reads.
        "stdinOnce": wanted.with_input and not wanted.with_terminal,
        "tty": wanted.with_terminal,
    }
    if wanted.target:
        made["targetContainerName"] = wanted.target
    if wanted.command:
        made["args" if wanted.only_arguments else "command"] = list(wanted.command)
    if wanted.env:
        made["env"] = [{"name": key, "value": value} for key, value in wanted.env]
    if wanted.pull_policy:
        made["imagePullPolicy"] = wanted.pull_policy
    if context := security_context(wanted.profile):
        made["securityContext"] = context
    return made


def security_context(profile: str) -> dict[str, Any]:
    """Return what a profile gives an ephemeral container (profiles.go of kubectl)."""
    contexts: dict[str, dict[str, Any]] = {
        "general": {"capabilities": {"add": ["SYS_PTRACE"]}},
        "netadmin": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
        "sysadmin": {"privileged": True},
        "restricted": {
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "allowPrivilegeEscalation": False,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return contexts.get(profile, {})


def _free_name(taken: Sequence[str]) -> str:
    while True:
        name = "debugger-" + "".join(random.choices(_LETTERS, k=5))
        if name not in taken:
            return name


def _model(pod: Json, wanted: Wanted) -> str:
    """Return the container whose image is used if none is named."""
    first = str(items(part(pod, "spec"), "containers")[0].get("name"))
    chosen = part(pod, "metadata", "annotations").get("kubectl.kubernetes.io/default-container")
    return wanted.target or str(chosen or first)


def _image(pod: Json, wanted: Wanted) -> str:
    model = _model(pod, wanted)
    every = [c for kind in _ALL_LISTS for c in items(part(pod, "spec"), kind)]
    return next((str(c.get("image")) for c in every if c.get("name") == model), "")


def _changes(agent: AgentClient, uid: str, place: tuple[str, str], name: str) -> Iterator[Json]:
    """Yield the container's state at each change of the pod. Raises `ClientError` at its end."""
    for change in agent.watch("pods", namespace=place[0]):
        pod = change.get("object")
        if pod is None or part(pod, "metadata").get("uid") != uid:
            continue
        if change.get("type") == "DELETED":
            raise ClientError(f"pod {place[1]} has been removed meanwhile")
        yield _state(pod, name)
        _check_alive(pod, name)
    raise ClientError("the agent has ended meanwhile")


def _check_alive(pod: Json, name: str) -> None:
    """Raise `ClientError` if a pod has ended, or does so now."""
    meta = part(pod, "metadata")
    if meta.get("deletionTimestamp") or part(pod, "status").get("phase") in TERMINAL_PHASES:
        raise ClientError(f"pod {meta.get('name')} has ended, and container {name} with it")


def _state(pod: Json, name: str) -> Json:
    statuses = items(part(pod, "status"), "ephemeralContainerStatuses")
    return next((part(s, "state") for s in statuses if s.get("name") == name), {})


def _wait_started(agent: AgentClient, uid: str, place: tuple[str, str], name: str) -> Json:
    """Return the state in which the container runs or has ended; show what it waits for."""
    progress = Progress()
    while True:
        pod = agent.get("pods", *place)
        if part(pod, "metadata").get("uid") != uid:
            raise ClientError(f"pod {place[1]} has been removed meanwhile")
        state = _state(pod, name)
        if "running" in state or "terminated" in state:
            progress.clear()
            return state
        _check_alive(pod, name)
        waiting = part(state, "waiting")
        pulls = pull_texts(agent.get("status"), uid, time.time(), timed=progress.is_live)
        text = pulls.get(name) or str(waiting.get("message") or "")
        progress.show(f"container {name}: {waiting.get('reason')}: {text}" if text else "")
        time.sleep(_POLL)


def _exit_code(agent: AgentClient, uid: str, place: tuple[str, str], name: str) -> int:
    """Return the exit code of a container whose streams have ended."""
    for state in _changes(agent, uid, place, name):
        if "terminated" in state:
            return int(part(state, "terminated").get("exitCode") or 0)
    raise AssertionError("`_changes` ends by raising")


def _print_log(agent: AgentClient, place: tuple[str, str], name: str, **query: str) -> None:
    for piece in agent.stream("logs", *place, name, **query):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
