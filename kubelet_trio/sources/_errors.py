"""What is wrong with a manifest.

ManifestError: the bytes of one file or URL cannot be used, with every reason found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


def _line(origin: str, error: FieldError) -> str:
    document = f"document {error.document}" if error.document else ""
    return ": ".join(part for part in (origin, document, error.field, error.message) if part)
