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

_SHOWN = 80  # characters of a value that a message shows


@dataclass(frozen=True, slots=True)
class FieldError:
    """One reason, in the form of the API server's field errors."""

    __module__ = "kubelet_trio"  # where a program imports it from

    field: str  # path inside the document, e.g. spec.containers[0].name; "" is all of it
    message: str
    document: int = 0  # 1 for the first in the file; 0: the file as a whole


class ManifestError(Exception):
    """A file or response that gives no pods: nothing of it is used."""

    __module__ = "kubelet_trio"  # tracebacks show where a program imports it from

    def __init__(self, origin: str, errors: Sequence[FieldError]) -> None:
        self.origin = origin
        self.errors = tuple(errors)
        super().__init__("; ".join(_line(origin, error) for error in errors))


class YamlError(Exception):
    """A document cannot be read. `line` counts from 1; 0 if it is not known."""

    def __init__(self, message: str, line: int = 0) -> None:
        self.line = line
        super().__init__(f"line {line}: {message}" if line else message)


def _line(origin: str, error: FieldError) -> str:
    document = f"document {error.document}" if error.document else ""
    return ": ".join(part for part in (origin, document, error.field, error.message) if part)


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
