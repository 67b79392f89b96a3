"""`plan` and `diff`: what an edit of the agent's manifest directory would do, before it is made."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import click
import msgspec

from kubelet_trio.cli.apply import read_texts
from kubelet_trio.cli.client import AgentClient
from kubelet_trio.cli.colour import paint
from kubelet_trio.cli.podstate import Json, items
from kubelet_trio.cli.tables import as_text, has_colour, printable

SAME, DIFFERS, TROUBLE, REFUSED = 0, 1, 2, 3  # exit codes, as diff(1); and the node refuses

_SIGNS = {"create": "+", "remove": "-", "replace": "±", "update": "~"}
_MOODS = {"create": "good", "remove": "bad", "replace": "busy", "update": "busy"}
_VERDICTS = {
    "admitted": "the node admits it",
    "preempting": "the node admits it once other pods have ended",
    "rejected": "THE NODE WOULD NOT ADMIT IT",
    "deferred": "THE RESIZE WOULD WAIT",
    "infeasible": "THE RESIZE CAN NEVER BE GRANTED",
}


def plan(agent: AgentClient, files: Sequence[str], *, prune: bool, output: str | None) -> int:
    """Print what an edit would do; return the exit code. Raises `ClientError`."""
    found = _ask(agent, files, prune=prune, manifests=False)
    if output:
        click.echo(as_text(found, output), nl=False)
    else:
        click.echo("\n".join(plan_lines(found, coloured=has_colour())))
    return exit_code(found)


def diff(agent: AgentClient, files: Sequence[str], *, prune: bool) -> int:
    """Print how manifests would change, as the agent has them; return the exit code.

    Raises `ClientError`.
    """
    found = _ask(agent, files, prune=prune, manifests=True)
    lines = list(diff_lines(found))
    coloured = has_colour()
    for line in lines:
        click.echo(_painted(line) if coloured else line)
    return DIFFERS if lines else SAME


def exit_code(found: Json) -> int:
    """Return what a script learns of a plan: 0 nothing, 1 changes, 3 the node refuses a part."""
    if found.get("refused"):
        return REFUSED
    return DIFFERS if found.get("changes") else SAME


def _ask(agent: AgentClient, files: Sequence[str], *, prune: bool, manifests: bool) -> Json:
    documents = {
        origin: text.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()
        for name in files
        for text, origin in read_texts(name)
    }
    body = msgspec.json.encode({"documents": documents, "prune": prune})
    found: Json = agent.send(body, "plan", manifests="1" if manifests else "0")
    return found


def plan_lines(found: Json, *, coloured: bool = False) -> list[str]:
    """Return the lines of a plan. Pure."""
    lines: list[str] = []
    for change in items(found, "pods"):
        action = str(change.get("action"))
        head = f"{_SIGNS.get(action, '?')} pod {change.get('namespace')}/{change.get('name')}"
        text = printable(f"{head}: {_action(change)}")
        lines += [paint(_MOODS[action], text) if coloured and action in _MOODS else text]
        lines += [f"    {printable(line)}" for line in _pod(change)]
    for thing in items(found, "objects"):
        action = str(thing.get("action"))
        space = f"{thing['namespace']}/" if thing.get("namespace") else ""
        name = f"{thing.get('kind')} {space}{thing.get('name')}"
        lines.append(printable(f"{_SIGNS.get(action, '?')} {name}: {action}"))
        if users := thing.get("used_by"):
            lines.append(f"    its volumes are refreshed in {', '.join(users)}")
    lines += [f"! {printable(str(problem))}" for problem in found.get("problems") or ()]
    return [*lines, _sum(found)] if lines else ["nothing would change"]


def _action(change: Json) -> str:
    refused = (change.get("verdict") or {}).get("decision") == "rejected"
    texts = {
        "create": "a new pod",
        "remove": "it ends, and all of it is removed",
        "replace": "it ends, and a new pod of the name starts",
        "update": "it stays the same pod",
    }
    if change.get("action") == "replace" and refused:
        return "it ends, and nothing takes its place"
    return texts.get(str(change.get("action")), "")


def _pod(change: Json) -> Iterator[str]:
    if fields := change.get("fields"):
        yield f"changes    {', '.join(fields)}"
    for container in items(change, "containers"):
        why = f"  ({container['why']})" if container.get("why") else ""
        yield f"{container.get('action'):<9}  container {container.get('name')}{why}"
    for volume in items(change, "volumes"):
        lost = ", and its content is lost" if volume.get("loses_data") else ""
        yield f"{volume.get('action'):<9}  volume {volume.get('name')} ({volume.get('kind')}){lost}"
    verdict = change.get("verdict")
    if verdict:
        text = _VERDICTS.get(str(verdict.get("decision")), str(verdict.get("decision")))
        because = ": ".join(str(verdict[k]) for k in ("reason", "message") if verdict.get(k))
        victims = f": {', '.join(verdict['victims'])}" if verdict.get("victims") else ""
        yield f"admission  {text}{victims}{f': {because}' if because else ''}"


def _sum(found: Json) -> str:
    """Return the last line: how many pods of each kind of change."""
    names = {
        "create": "to create",
        "replace": "to replace",
        "update": "to update in place",
        "remove": "to remove",
    }
    pods = items(found, "pods")
    counts = [
        (sum(change.get("action") == action for change in pods), text)
        for action, text in names.items()
    ]
    told = ", ".join(f"{count} {text}" for count, text in counts if count)
    return f"{len(pods)} pod{'s' * (len(pods) != 1)}: {told}" if told else "no pod would change"


def diff_lines(found: Json) -> Iterator[str]:
    """Yield the unified diffs of all manifests that would change. Pure."""
    for change in items(found, "pods"):
        yield from _diff(f"pod/{change.get('namespace')}/{change.get('name')}", change)
    for thing in items(found, "objects"):
        words = (str(thing.get("kind")).lower(), thing.get("namespace"), thing.get("name"))
        yield from _diff("/".join(str(word) for word in words if word), thing)


def _diff(name: str, change: Json) -> Iterator[str]:
    now, then = (
        as_text(manifest, "yaml").splitlines() if manifest else []
        for manifest in (change.get("before"), change.get("after"))
    )
    for line in difflib.unified_diff(now, then, f"now/{name}", f"then/{name}", lineterm=""):
        yield printable(line)


def _painted(line: str) -> str:
    if line.startswith("+"):
        return paint("good", line)
    return paint("bad", line) if line.startswith("-") else line
