"""Errors of the sources: what is wrong with a manifest.

    ManifestError     one file or URL gives no pods; holds a FieldError for each reason
    YamlError         the text of a document cannot be read; `decode` turns it into ManifestError

`FieldError` is a value, not an exception: validation collects all of them before it gives up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_ERRORS = 100  # of one manifest that are told: more help nobody, and cost memory

_SHOWN = 80  # characters of a value that a message shows


@dataclass(frozen=True, slots=True)
class FieldError:
    """One reason, in the form of the API server's field errors."""

    __module__ = "kubelet_trio"  # where a program imports it from

    field: str  # path inside the document, e.g. spec.containers[0].name; "" is all of it
    message: str
    document: int = 0  # 1 for the first in the file; 0: the file as a whole
    line: int = 0  # 1 for the first of the file; 0: not known, as for a pod that is no text
    column: int = 0  # in characters, 1 for the first of the line


class ManifestError(Exception):
    """A file or response that gives no pods: nothing of it is used.

    Its text has each reason as `FILE:LINE:COLUMN: FIELD: MESSAGE`.
    """

    __module__ = "kubelet_trio"  # tracebacks show where a program imports it from

    def __init__(self, origin: str, errors: Sequence[FieldError]) -> None:
        self.origin = origin
        self.errors = tuple(errors)
        super().__init__("; ".join(error_line(origin, error) for error in errors))


class YamlError(Exception):
    """A document cannot be read. `line` and `column` count from 1; 0 if they are not known."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        self.message = message
        self.line = line
        self.column = column
        super().__init__(f"line {line}: {message}" if line else message)


def place(origin: str, error: FieldError) -> str:
    """Return where an error is, for people and their editors: file, position, field."""
    # The position tells the document, too.
    document = f"document {error.document}" if error.document and not error.line else ""
    position = f"{origin}:{error.line}:{error.column}" if error.line else origin
    return ": ".join(part for part in (position, document, error.field) if part)


def error_line(origin: str, error: FieldError) -> str:
    """Return an error as one line."""
    return f"{place(origin, error)}: {error.message}"


def first_errors(errors: Sequence[FieldError]) -> tuple[FieldError, ...]:
    """Return at most `MAX_ERRORS`, with the number of the rest."""
    if len(errors) <= MAX_ERRORS:
        return tuple(errors)
    return (*errors[:MAX_ERRORS], FieldError("", f"and {len(errors) - MAX_ERRORS} more errors"))


def json_type(value: Any) -> str:
    """Return the JSON name of a decoded value's type, with an article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"


def quote(value: Any) -> str:
    """Return a value as error messages show it: JSON, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
