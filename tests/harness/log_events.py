"""`python -m tests.harness.log_events` writes the page that lists what the agent logs.

The names, levels and fields are read out of the calls in the code; a test compares the page with
them. A name is always written where it is logged, but for those of `_PASSED_ON`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "log-events.md"
_LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
_LOGGERS = ("log", "logger")
# Classes that are given a name to log, and the place or keyword of that argument.
_PASSED_ON = {"LeftOut": (0, "event", "warning"), "Refusals": (0, "event", "warning")}
_OF_A_POD = ("about_pod", "pod_fields")  # return the fields that name a pod
_HEAD = """\
# The agent's log

What the agent logs, by the part that logs it. Lines of the level `debug` are logged from `--v=4`
on, or for single files with `logging.vmodule` (a file's name is the last part of `logged by`). With
`splitStream` the lines of `error` go to stderr, all others to stdout.

Each line has its time, level and name, the fields below, and the context that it was logged in, as
text and as JSON. Pods and containers have the Go kubelet's keys; `pod` is `namespace/name`:

| context | fields |
| --- | --- |
| a part of the [supervision tree](../supervision.md) | `child` |
| a pod's worker, and tasks and threads that work for it | `pod`, `podUID` |
| start and stop of a container, its hooks, image and probes | `containerName`; of a probe `probe` |
| a connection of the kubelet API or of a socket for programs of the node | `client` |
| a request whose path names a pod | `pod`, `containerName` |

`error` lines of exceptions end with the traceback. An event of Kubernetes is logged as
`event` when it first occurs, as `warning` if its type is Warning; its repetitions are `debug`.
`library` is what a Python library logs. With `--v=4` each round of a pod, call of the runtime,
request to the API server and request of the kubelet API has a line (`pod.synced`, `runtime.call`,
`kube.request`, `http.request`).

`python -m tests.harness.log_events` writes this page from the code.
"""


@dataclass
class Logged:
    """One name, wherever it is logged."""

    levels: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)


class UnnamedError(Exception):
    """A line is logged under a name that the code does not show."""


def logged_events(package: Path = ROOT / "kubelet_trio") -> dict[str, Logged]:
    """Return everything that the package logs, by name. Raises `UnnamedError`."""
    found: dict[str, Logged] = defaultdict(Logged)
    for file in sorted(package.rglob("*.py")):
        where = file.relative_to(package).with_suffix("").as_posix()
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call):
                for name, level, fields in _names(call, where):
                    entry = found[name]
                    entry.levels.add(level)
                    entry.fields.update(dict.fromkeys(fields))
                    entry.files.add(where)
    return dict(found)


def page() -> str:
    """Return the page."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for name, entry in sorted(logged_events().items()):
        for room in sorted({where.partition("/")[0] for where in entry.files}):
            files = ", ".join(sorted(w for w in entry.files if w.partition("/")[0] == room))
            levels = ", ".join(level for level in _LEVELS if level in entry.levels)
            fields = ", ".join(f"`{one}`" for one in entry.fields) or "-"
            rooms[room].append(f"| `{name}` | {levels} | {fields} | {files} |")
    parts = [_HEAD]
    for room, lines in sorted(rooms.items()):
        parts += [
            f"## {room}\n",
            "| name | level | fields | logged by |",
            "| --- | --- | --- | --- |",
        ]
        parts += [*lines, ""]
    return "\n".join(parts)


def _names(call: ast.Call, where: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield names, levels and fields of a call that logs, or that passes a name on."""
    function = call.func
    if isinstance(function, ast.Name) and function.id in _PASSED_ON:
        place, keyword, level = _PASSED_ON[function.id]
        arguments = [*call.args[place : place + 1], *_keyword(call, keyword)]
        for name in _texts(arguments[0]) if arguments else ():
            yield name, level, []
        return
    if not (isinstance(function, ast.Attribute) and function.attr in _LEVELS):
        return
    logger = function.value
    own = logger.id if isinstance(logger, ast.Name) else getattr(logger, "attr", "")
    if own.strip("_") not in _LOGGERS or not call.args:
        return
    names = list(_texts(call.args[0]))
    if not names and not _is_passed_on(call.args[0]):
        raise UnnamedError(f"{where}: {ast.unparse(call)}")
    fields = [name for keyword in call.keywords for name in _fields(keyword)]
    for name in names:
        yield name, "error" if function.attr == "exception" else function.attr, fields


def _fields(keyword: ast.keyword) -> Iterator[str]:
    """Yield the fields that a keyword stands for: `**about_pod(pod)` for those of a pod."""
    if keyword.arg is not None:
        if keyword.arg != "exc_info":
            yield keyword.arg
        return
    value = keyword.value
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") in _OF_A_POD:
        yield from ("pod", "podUID")


def _keyword(call: ast.Call, name: str) -> list[ast.expr]:
    return [keyword.value for keyword in call.keywords if keyword.arg == name]


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)


def _is_passed_on(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("event", "_event")


if __name__ == "__main__":
    PAGE.write_text(page())
