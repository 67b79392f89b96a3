"""Colour on a terminal: the words that tell good from bad. Nothing else is coloured.

`--color always|never` decides, else NO_COLOR (https://no-color.org), TERM=dumb, CLICOLOR_FORCE
(https://bixense.com/clicolors), and at last whether the output is a terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TextIO

_CODES = {"good": "32", "busy": "33", "bad": "31"}
_GOOD = frozenset(
    {"Running", "Ready", "Completed", "Succeeded", "True", "ok", "running", "Mounted"}
)
_BUSY = frozenset(
    {
        *("Pending", "Terminating", "ContainerCreating", "PodInitializing", "Unknown", "Warning"),
        *(
            "starting",
            "stopping",
            "backoff",
            "waiting",
            "NotMounted",
            "Ready,SchedulingDisabled",
        ),
    }
)
# Of other words the colour is not known: a message has none, and a status that is not good is bad.
_PLAIN = frozenset({"Normal", "stopped", "ended", "", "False"})
_COLUMNS = frozenset({"STATUS", "TYPE", "Type"})
_TREE_STATE = re.compile(r"(?<=  )(running|starting|stopping|backoff|waiting|failed)\b")


def is_wanted(mode: str, stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to colour what goes to a stream; `mode` is auto, always or never."""
    if mode != "auto":
        return mode == "always"
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return environment.get("CLICOLOR_FORCE", "0") not in ("", "0") or stream.isatty()


def paint_cell(column: str, text: str) -> str:
    """Return a cell in its colour, if its column is one of states."""
    return paint_state(text) if column in _COLUMNS and text.strip("-") else text


def paint_state(text: str) -> str:
    """Return the word of a state in its colour."""
    if text in _PLAIN or text in ("Type", "Status"):
        return text
    is_busy = text in _BUSY or re.fullmatch(r"Init:\d+/\d+", text) is not None
    return paint("good" if text in _GOOD else "busy" if is_busy else "bad", text)


def paint(mood: str, text: str) -> str:
    """Return text in the colour of `good`, `busy` or `bad`."""
    return f"\x1b[{_CODES[mood]}m{text}\x1b[0m"


def paint_tree(text: str) -> str:
    """Return a drawn supervision tree with coloured states and errors."""
    lines = []
    for line in text.split("\n"):
        facts, sign, error = line.partition("last error: ")
        painted = _TREE_STATE.sub(lambda found: paint_state(found[1]), facts, count=1)
        lines.append(painted + (paint("bad", sign + error) if sign else ""))
    return "\n".join(lines)
