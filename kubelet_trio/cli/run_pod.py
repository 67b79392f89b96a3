"""`kubelet-trio run-pod`: one pod in the foreground, by the running agent or an embedded kubelet.

Both are followed through a control socket. A signal only counts: the loop looks at the count, so
that no Ctrl-C can come between the pod's start and its end.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import click

from kubelet_trio.cli.ages import parse_time
from kubelet_trio.cli.client import AgentClient, ClientError, NoAgentError
from kubelet_trio.cli.podstate import TERMINAL_PHASES, Json, items, part
from kubelet_trio.cli.progress import Progress, pull_texts

_INTERRUPTED = 130
_POLL = 0.25  # s
_PATIENCE = 10.0  # s for what may still come by itself, as the library's `wait_ready`
_LAST_LINES = 10.0  # s for the rest of the logs once a pod has ended
_HOPELESS = ("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName")
_NOT_RUN = ("ContainerCannotRun", "StartError")
_KINDS = ("initContainerStatuses", "containerStatuses")


class Placed(NamedTuple):
    """A pod that was handed over, and the agent to ask about it."""

    agent: AgentClient
    namespace: str
    name: str
    uid: str
    where: str  # of its manifest, as the agent's problems begin


class Place(Protocol):
    """Where a pod runs. Leaving `open` removes it there in every case."""

    def open(self) -> AbstractContextManager[Placed]: ...
    def check(self) -> None:
        """Raise `ClientError` if the pod can no longer run there."""

    def end(self, *, at_once: bool) -> bool:
        """Begin to end the pod; may be called again. Raises `ClientError`.

        Returns whether it is worth to wait: only an embedded kubelet can end a pod at once.
        """


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP; the third one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, *_: object) -> None:
        self.count += 1
        if self.count > 2:  # an agent that hangs must not keep the command
            raise KeyboardInterrupt

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Count the signals of a block."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self.note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_pod(place: Place) -> int:
    """Run a pod to its end, print its logs, and return the exit code of the command.

    Raises `ClientError` if the pod could not start, or its agent is lost.
    """
    interrupts = Interrupts()
    with interrupts.caught(), place.open() as placed:
        logs = _Logs(placed, interrupts)
        try:
            pod = _follow(place, placed, logs, interrupts)
        except ClientError:
            with suppress(NoAgentError):  # then this is the error that is told already
                if place.end(at_once=True):
                    _wait_gone(place, placed, interrupts, quiet=True)
            raise
        if pod is not None:
            logs.join(_LAST_LINES)
        place.end(at_once=False)
        _wait_gone(place, placed, interrupts, quiet=pod is not None)
        logs.join(_LAST_LINES if pod is None else 0)
        return _INTERRUPTED if pod is None else exit_code(pod)


def read_manifest(file: str) -> tuple[bytes, str]:
    """Return the text of a file, `-`: of the input, and its name. Raises `ClientError`."""
    if file == "-":
        return sys.stdin.buffer.read(), "<stdin>"
    try:
        return Path(file).read_bytes(), file
    except OSError as exc:
        raise ClientError(f"cannot read {file}: {exc.strerror}") from exc


def exit_code(pod: Json) -> int:
    """Return the code of an ended pod's first failed container, else 0.

    Raises `ClientError` if it has failed before a container ran.
    """
    status = part(pod, "status")
    if status.get("phase") == "Succeeded":
        return 0
    why = f"{status.get('reason') or ''}: {status.get('message') or ''}".strip(": ")
    for found in _statuses(pod):
        ended = part(found, "state", "terminated")
        if ended.get("reason") in _NOT_RUN:
            raise ClientError(f"{found.get('name')} could not start: {ended.get('message', '')}")
        if code := ended.get("exitCode"):
            return int(code)
    raise ClientError(f"the pod has failed: {why or 'no reason is known'}")


def why_stuck(pod: Json) -> tuple[str, bool]:
    """Return why a container cannot start ("" if none is stuck), and whether that is final."""
    for found in _statuses(pod):
        waiting = part(found, "state", "waiting")
        reason = str(waiting.get("reason") or "")
        if reason in ("", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"):
            continue
        return f"{found.get('name')}: {reason}: {waiting.get('message', '')}", reason in _HOPELESS
    return "", False


def _statuses(pod: Json) -> Sequence[Json]:
    """Return the statuses of containers whose end counts: all but sidecars."""
    inits = items(part(pod, "spec"), "initContainers")
    sidecars = {c.get("name") for c in inits if c.get("restartPolicy") == "Always"}
    every = [found for kind in _KINDS for found in items(part(pod, "status"), kind)]
    return [found for found in every if found.get("name") not in sidecars]


def _follow(place: Place, placed: Placed, logs: _Logs, interrupts: Interrupts) -> Json | None:
    """Return the pod when it has ended, None after Ctrl-C. Raises `ClientError`."""
    stuck_since: float | None = None
    noted = False
    progress = Progress()
    while not interrupts.count:
        place.check()
        pod = find(placed)
        if pod is not None:
            if not noted and part(pod, "spec").get("restartPolicy", "Always") == "Always":
                click.echo("restartPolicy is Always: the pod runs until Ctrl-C", err=True)
            noted = True
            progress.show(_pulls(placed) if progress.is_live else "")
            logs.update(pod)
            if part(pod, "status").get("phase") in TERMINAL_PHASES:
                return pod
        why, is_final = why_stuck(pod) if pod is not None else ("", False)
        why = why or _agents_problem(placed, pod)
        if not why:
            stuck_since = None
        elif stuck_since is None:
            stuck_since = time.monotonic()
        if why:
            progress.clear()
        if why and (is_final or time.monotonic() - (stuck_since or 0) > _PATIENCE):
            raise ClientError(f"pod {placed.name} cannot start: {why}")
        time.sleep(_POLL)
    return None


def _pulls(placed: Placed) -> str:
    """Return what the agent pulls for the pod now."""
    found = pull_texts(placed.agent.get("status"), placed.uid, time.time())
    return "; ".join(f"{container}: {text}" for container, text in found.items())


def find(placed: Placed) -> Json | None:
    """Return the pod as the agent shows it now; None if it has none. Raises `ClientError`."""
    pods = placed.agent.get("pods", namespace=placed.namespace)["items"]
    return next((p for p in pods if part(p, "metadata").get("uid") == placed.uid), None)


def _agents_problem(placed: Placed, pod: Json | None) -> str:
    """Return what keeps an agent from starting the pod; nothing once a container has run."""
    if pod is not None and any(f.get("containerID") for f in _statuses(pod)):
        return ""
    status = placed.agent.get("status")
    if problem := part(status, "runtime").get("problem"):
        return f"the runtime {part(status, 'runtime').get('endpoint', '')}: {problem}"
    problems = [p for source in items(status, "sources") for p in items(source, "problems")]
    mine = [p for p in problems if placed.where and str(p.get("where")).startswith(placed.where)]
    return "; ".join(f"{p.get('where')}: {p.get('message')}" for p in mine)


def _wait_gone(place: Place, placed: Placed, interrupts: Interrupts, *, quiet: bool) -> None:
    """Wait until the pod is removed; a further Ctrl-C ends it at once. Raises `ClientError`."""
    known, shown = interrupts.count, ""
    live = sys.stderr.isatty()
    while (pod := find(placed)) is not None:
        if interrupts.count > max(known, 1):
            known = interrupts.count
            if not place.end(at_once=True):
                click.echo(f"pod {placed.name}: the agent goes on to end it", err=True)
                return
        left = _grace_left(part(pod, "metadata"), time.time())
        text = f"ending pod {placed.name}: {left} s of its grace are left; Ctrl-C: at once"
        # In a file one line says it; on a terminal it counts down.
        if left is not None and text != shown and not quiet and (live or not shown):
            click.echo(f"\r\033[K{text}" if live else text, nl=not live, err=True)
            shown = text
        time.sleep(_POLL)
    if live and shown:
        click.echo(err=True)


def _grace_left(meta: Json, now: float) -> int | None:
    # The API's deletionTimestamp is the time at which the grace is over.
    until = parse_time(meta.get("deletionTimestamp"))
    return None if until is None else max(0, round(until - now))


class _Logs:
    """Prints the logs of all containers, one thread for each instance, in its container's order."""

    def __init__(self, placed: Placed, interrupts: Interrupts) -> None:
        self._placed, self._interrupts = placed, interrupts
        self._seen: set[str] = set()
        self._last: dict[str, threading.Thread] = {}
        self._writes = threading.Lock()

    def update(self, pod: Json) -> None:
        """Follow the instances that are new."""
        spec = part(pod, "spec")
        many = len(items(spec, "initContainers")) + len(items(spec, "containers")) > 1
        for found in (f for kind in _KINDS for f in items(part(pod, "status"), kind)):
            name = str(found.get("name"))
            past = str(part(found, "lastState", "terminated").get("containerID") or "")
            current = str(found.get("containerID") or "")
            state = part(found, "state")
            if past and past not in self._seen and past != current:
                self._print(name, past, many, previous="1")
            if current and ("running" in state or "terminated" in state):
                self._print(name, current, many, follow="1")

    def join(self, limit: float) -> None:
        """Wait for the ends of the logs, at most `limit` seconds."""
        deadline = time.monotonic() + limit
        for thread in self._last.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _print(self, name: str, instance: str, many: bool, **query: str) -> None:
        if instance in self._seen:
            return
        self._seen.add(instance)
        earlier = self._last.get(name)
        prefix = f"[{name}] ".encode() if many else b""

        def run() -> None:
            if earlier is not None:
                earlier.join()
            self._copy(name, prefix, query)

        # A daemon: a log that does not grow must not keep the command.
        self._last[name] = threading.Thread(target=run, daemon=True)
        self._last[name].start()

    def _copy(self, name: str, prefix: bytes, query: Mapping[str, str]) -> None:
        placed, rest = self._placed, b""
        try:
            for piece in placed.agent.stream("logs", placed.namespace, placed.name, name, **query):
                if not prefix:
                    self._write(piece)
                    continue
                *lines, rest = (rest + piece).split(b"\n")
                self._write(b"".join(prefix + line + b"\n" for line in lines))
            if rest:
                self._write(prefix + rest + b"\n")
        except BrokenPipeError:
            self._interrupts.count = max(self._interrupts.count, 1)  # nobody reads: end the pod
        except ClientError as exc:
            click.echo(f"log of {name}: {exc}", err=True)

    def _write(self, piece: bytes) -> None:
        with self._writes:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
