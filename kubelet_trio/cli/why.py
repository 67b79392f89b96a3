"""`why`: what is wanted of a pod, what is, what stands between them, and what happens next."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterator, Sequence

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.colour import paint
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.reading import UnknownPodError, find_pod
from kubelet_trio.cli.tables import as_text, has_colour, printable
from kubelet_trio.durations import human_duration, span_words

_NARROWEST = 60  # columns
_SHORT_ID = 13  # characters of a sandbox, as crictl prints


def why(agent: AgentClient, name: str, namespace: str, output: str | None) -> None:
    """Print why a pod is as it is. Raises `ClientError`."""
    try:
        meta = part(find_pod(agent, name, namespace), "metadata")
    except UnknownPodError as exc:
        raise ClientError("\n".join((str(exc), *_invalid(agent)))) from exc
    found = agent.get("why", str(meta.get("namespace")), str(meta.get("name")))
    if output:
        click.echo(as_text(found, output), nl=False)
        return
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    click.echo("\n".join(why_lines(found, width, coloured=has_colour())))


def _invalid(agent: AgentClient) -> Iterator[str]:
    """Yield the errors of manifests that are not in force: the pod may be in one of them."""
    for source in items(agent.get("status"), "sources"):
        for problem in items(source, "problems"):
            place, text = problem.get("where"), problem.get("message")
            yield printable(f"a manifest is not in force: {place}: {text}")


def why_lines(found: Json, width: int = 100, *, coloured: bool = False) -> list[str]:
    """Return the screen of an answer. Pure."""
    now = float(found.get("now") or 0.0)
    head = f"Pod {found.get('namespace')}/{found.get('name')}: {found.get('summary')}"
    lines = textwrap.wrap(printable(head), width, subsequent_indent="    ")
    if coloured and any(reason.get("blocks") for reason in items(found, "reasons")):
        lines = [paint("bad", line) for line in lines]
    for title, rows in (
        ("Wanted", _wanted(part(found, "wanted"))),
        ("Actual", _actual(part(found, "actual"), now)),
        ("Because", _reasons(items(found, "reasons"), now)),
        ("Next", _next(items(found, "next"), now)),
    ):
        lines += ["", *_section(title, list(rows), width)]
    return lines


def why_texts(found: Json) -> list[str]:
    """Return the reasons of an answer in a line each, for other screens. Pure."""
    now = float(found.get("now") or 0.0)
    texts = []
    for reason in items(found, "reasons"):
        span = span_words(reason.get("since"), reason.get("until"), now)
        texts.append(
            printable(_who(reason) + f"{reason.get('text')}{f' ({span})' if span else ''}")
        )
    return texts


def _section(title: str, rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of a section: a column of words, and text that is wrapped beside it."""
    column = max((len(word) for word, _ in rows), default=0)
    indent = " " * (10 + column + 2 * bool(column))
    for index, (word, text) in enumerate(rows or [("", "nothing")]):
        first = f"{title if index == 0 else '':<10}" + (f"{word:<{column}}  " if column else "")
        wrapped = textwrap.wrap(
            printable(text), width, initial_indent=first, subsequent_indent=indent
        )
        yield from (line.rstrip() for line in wrapped or [first])


def _wanted(wanted: Json) -> Iterator[tuple[str, str]]:
    origin = wanted.get("manifest") or {"api": "the API server", "embedded": "the program"}.get(
        str(wanted.get("source")), str(wanted.get("source"))
    )
    generation = wanted.get("generation")
    version = f", generation {generation}" if generation else ""
    yield "pod", f"{wanted.get('state')}, from {origin}{version}"
    for container in items(wanted, "containers"):
        kind = "" if container.get("kind") == "main" else f" ({container.get('kind')})"
        yield str(container.get("name")), f"{container.get('image')}{kind}"


def _actual(actual: Json, now: float) -> Iterator[tuple[str, str]]:
    ready = "ready" if actual.get("ready") else "not ready"
    since = human_duration(max(0.0, now - float(actual.get("since") or now)))
    yield "pod", f"{actual.get('phase')}, {ready}; {actual.get('activity')} for {since}"
    for step in actual.get("doing") or ():
        yield "now", str(step)
    if sandbox := str(actual.get("sandbox") or ""):
        state = "runs" if actual.get("sandbox_ready") else "has stopped"
        at = f" at {', '.join(actual['ips'])}" if actual.get("ips") else ""
        yield "sandbox", f"{sandbox[:_SHORT_ID]} {state}{at}"
    else:
        yield "sandbox", "none"
    for container in items(actual, "containers"):
        yield str(container.get("name")), _container(container, now)


def _container(container: Json, now: float) -> str:
    state = str(container.get("state"))
    words = [state + (", ready" if container.get("ready") else "")]
    if (since := container.get("since")) is not None and state != "exited":
        words[0] += f" for {human_duration(max(0.0, now - since))}"
    if (code := container.get("exit_code")) is not None:
        reason = f" {container['exit_reason']}" if container.get("exit_reason") else ""
        ended = container.get("ended_at")
        ago = f" {human_duration(max(0.0, now - ended))} ago" if ended else ""
        verb = "" if state == "exited" else "last exited "
        words.append(f"{verb}code {code}{reason}{ago}")
    if count := container.get("restarts"):
        words.append(f"{count} restart{'s' * (count != 1)}")
    return ", ".join(words)


def _reasons(reasons: Sequence[Json], now: float) -> Iterator[tuple[str, str]]:
    for reason in reasons:
        since = reason.get("since")
        word = human_duration(max(0.0, now - since)) if since is not None else ""
        note = "" if reason.get("blocks", True) else "(note) "
        yield word, f"{note}{_who(reason)}{reason.get('text')}{_until(reason.get('until'), now)}"


def _who(reason: Json) -> str:
    return f"{reason['container']}: " if reason.get("container") else ""


def _until(until: float | None, now: float) -> str:
    if until is None:
        return ""
    clock = time.strftime("%H:%M:%S", time.localtime(until))
    return f", until {clock}" if until > now else f", it was due at {clock}"


def _next(coming: Sequence[Json], now: float) -> Iterator[tuple[str, str]]:
    for each in coming:
        at = each.get("at")
        word = f"in {human_duration(max(0.0, at - now))}" if at is not None else ""
        yield word, str(each.get("text"))
