"""Man pages, made of the same tables as the help. Pure.

The macros are those of man(7): `.TH`, `.SH`, `.SS`, `.TP`, `.B`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import click

from kubelet_trio.cli.main import COMMANDS

_EXITS = (
    ("0", "Done; also if there is nothing to list."),
    ("1", "Failed: one line on standard error begins with `error:`."),
    ("2", "Wrong usage: an unknown command, flag or value."),
    ("130", "Ended by Ctrl-C."),
)
_FILES = (
    ("/var/lib/kubelet", "The agent's root directory, for root."),
    ("$XDG_STATE_HOME/kubelet-trio", "The same, for other users."),
    ("ROOT/kubelet-trio.sock", "The control socket that the commands use."),
)


def man_pages(root: click.Context) -> Mapping[str, str]:
    """Return the text of each page by its file name; `root` is the context of all commands."""
    assert isinstance(root.command, click.Group)
    pages = {"kubelet-trio.1": _main_page(root), "kubelet-trio.8": _run_page()}
    for name in COMMANDS:
        command = root.command.get_command(root, name)
        if command is not None and name != "run":
            with click.Context(command, info_name=name, parent=root) as context:
                pages[f"kubelet-trio-{name}.1"] = _command_page(name, context)
    return pages


def _main_page(root: click.Context) -> str:
    lines = [
        *_head("kubelet-trio", "1", "a Kubernetes node agent, and commands to inspect it"),
        ".SH SYNOPSIS",
        *_entry("kubelet-trio [OPTIONS] COMMAND [ARGS]..."),
        ".SH DESCRIPTION",
        *_text(
            "`kubelet-trio run` is the agent; kubelet-trio(8) has its flags. All other commands "
            "connect to a running agent through its control socket, so run them as its user."
        ),
        *_options(root),
        ".SH COMMANDS",
    ]
    for name, entry in COMMANDS.items():
        section = "8" if name == "run" else "1"
        page = "kubelet-trio" if name == "run" else f"kubelet-trio-{name}"
        lines += _item(name, f"{entry.summary} See {page}({section}).")
    return _page([*lines, *_tail()])


def _command_page(name: str, context: click.Context) -> str:
    command = context.command
    pieces = " ".join(command.collect_usage_pieces(context))
    lines = [
        *_head(f"kubelet-trio-{name}", "1", COMMANDS[name].summary.rstrip(".")),
        ".SH SYNOPSIS",
        *_entry(f"kubelet-trio {name} {pieces}"),
        ".SH DESCRIPTION",
        *_text(command.help or COMMANDS[name].summary),
        *_options(context),
    ]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            lines += _item(each, (found.help if found is not None else "") or "")
    return _page([*lines, *_tail()])


def _run_page() -> str:
    from kubelet_trio.config import run_flag_groups

    lines = [
        *_head("kubelet-trio", "8", "the Kubernetes node agent"),
        ".SH SYNOPSIS",
        *_entry("kubelet-trio run [flags]"),
        ".SH DESCRIPTION",
        *_text(
            "Runs the pods of a manifest directory, a URL or an API server. Flags are those of "
            "the Go kubelet; they win over --config-dir, which wins over --config. In brackets: "
            "the field of KubeletConfiguration, which is to be preferred."
        ),
        ".SH OPTIONS",
    ]
    for title, entries in run_flag_groups().items():
        lines.append(f'.SS "{_escaped(title)}"')
        for head, text in entries:
            lines += _item(head, text)
    return _page([*lines, *_tail()])


def _options(context: click.Context) -> Iterator[str]:
    yield ".SH OPTIONS"
    for parameter in context.command.get_params(context):
        if record := parameter.get_help_record(context):
            yield from _item(*record)


def _head(name: str, section: str, summary: str) -> Iterator[str]:
    from kubelet_trio import __version__

    yield f'.TH "{name.upper()}" "{section}" "" "kubelet-trio {__version__}" "kubelet-trio"'
    yield ".SH NAME"
    # whatis(1) reads this line: name, an escaped dash, one line.
    yield f"{_escaped(name)} \\- {_escaped(summary)}"


def _tail() -> Iterator[str]:
    for title, entries in (("EXIT STATUS", _EXITS), ("FILES", _FILES)):
        yield f".SH {title}"
        for head, text in entries:
            yield from _item(head, text)
    yield ".SH SEE ALSO"
    yield "kubelet\\-trio(1), kubelet\\-trio(8)"


def _item(head: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield from _entry(head)
    yield from _text(text)


def _entry(text: str) -> Iterator[str]:
    quoted = _escaped(text).replace('"', "\\(dq")
    yield f'.B "{quoted}"'


def _text(text: str) -> Iterator[str]:
    # click's mark for a paragraph that keeps its lines has no meaning here.
    for index, paragraph in enumerate(re.split(r"\n\s*\n", text.replace("\b", "").strip())):
        if index:
            yield ".PP"
        yield _escaped(" ".join(paragraph.split()))


def _escaped(text: str) -> str:
    """Return text in which roff sees no request: a backslash, a dash, a line's first dot."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    # `\\&` is no character: it only begins the line.
    return f"\\&{text}" if not text or text.startswith((".", "'")) else text


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
