"""Versions of the files in which this agent keeps its state.

Each is a JSON object with a number `version`; a file without one has version 1. An older version
is read. A newer one, as after a downgrade, is refused by name and stays as it is: read by an agent
that does not know all of it, and written back, it would lose what the newer one has added.

Files in the Go kubelet's forms (checkpoints of the managers, volumes' data, records of pulls) have
that kubelet's own versions and checksums.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec

T = TypeVar("T")


class StateVersionError(ValueError):
    """A file of state is of a newer agent. The text names file, versions and the cure."""


@dataclass(frozen=True, slots=True)
class StateForm(Generic[T]):
    """The form of one kind of file.

    Attributes:
        what: what it holds, for messages: `the record of a pod`.
        kind: the type that its JSON is decoded to; a field `version` is not part of it.
        version: of the files that this agent writes, and the newest that it reads.
        without: what is lost with the file, for whoever would rather remove it.
    """

    what: str
    kind: type[T]
    version: int
    without: str

    def encode(self, value: T) -> bytes:
        """Return a file's content."""
        body = msgspec.json.encode(value)
        comma = b"" if body == b"{}" else b","
        return b'{"version":%d%s%s' % (self.version, comma, body[1:])

    def decode(self, content: bytes, path: str | os.PathLike[str]) -> T:
        """Return the value of a file.

        Raises `StateVersionError`, and one of JSON_ERRORS for what is not such a file.
        """
        self.check(content, path)
        return msgspec.json.decode(content, type=self.kind)

    def check(self, content: bytes, path: str | os.PathLike[str]) -> None:
        """Look at a file's version alone; raises as `decode`."""
        check_version(msgspec.json.decode(content, type=_Head).version, self, path)


class _Head(msgspec.Struct, frozen=True):
    version: Annotated[int, msgspec.Meta(ge=1)] = 1


def check_version(version: int, form: StateForm[T], path: str | os.PathLike[str]) -> None:
    """Raise `StateVersionError` for a version that this agent does not know."""
    if version > form.version:
        raise StateVersionError(
            f"{os.fspath(path)}: version {version} of {form.what} is of a newer kubelet-trio, and "
            f"this one reads versions up to {form.version}: run the newer one, or move the file "
            f"away, and {form.without}"
        )
