"""The plan of an installation and of its undoing: pure decisions on texts.

A journal holds the hash of each file that was written, and the text that it replaced. It is written
before the files, with the hashes before and after: wherever an installation is interrupted, the
next one completes it, and an uninstallation knows what is its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kubelet_trio.install.contents import Options, WantedFile


@dataclass(frozen=True, slots=True)
class Entry:
    """What the journal knows of a file."""

    hashes: tuple[str, ...]  # of what an installation has written, or was about to write
    before: str | None = None  # the text that it replaced; None: there was no file


@dataclass(frozen=True, slots=True)
class Journal:
    """All that installations have written on a machine."""

    files: Mapping[str, Entry] = field(default_factory=dict)
    directories: tuple[str, ...] = ()  # made by an installation
    options: Options = field(default_factory=Options)

    def is_own(self, path: str, text: str) -> bool:
        """Whether a file is as an installation has left it."""
        return path in self.files and digest(text) in self.files[path].hashes


@dataclass(frozen=True, slots=True)
class Change:
    """What an installation does with a file; `keep` leaves another's file as it is."""

    action: Literal["create", "change", "unchanged", "keep"]
    file: WantedFile

    @property
    def writes(self) -> bool:
        """Whether the file is written."""
        return self.action in ("create", "change")


@dataclass(frozen=True, slots=True)
class Undo:
    """What an uninstallation does with a file; `leave` is for one that was changed since."""

    action: Literal["remove", "restore", "leave", "gone"]
    path: str
    text: str = ""  # of `restore`


def digest(text: str) -> str:
    """Return the hash of a file's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def plan_install(
    wanted: Iterable[WantedFile], present: Mapping[str, str | None], journal: Journal
) -> list[Change]:
    """Return what to do with each wanted file; `present` has the texts that there are now."""
    return [_change(file, present.get(file.path), journal) for file in wanted]


def _change(file: WantedFile, text: str | None, journal: Journal) -> Change:
    if text is None:
        return Change("create", file)
    if text == file.text:
        return Change("unchanged", file)
    if file.edits or journal.is_own(file.path, text):
        return Change("change", file)
    return Change("keep", file)


def intent(
    changes: Sequence[Change],
    present: Mapping[str, str | None],
    journal: Journal,
    directories: Iterable[str],
    options: Options,
) -> Journal:
    """Return the journal to write before the changes are made."""
    files = dict(journal.files)
    for change in changes:
        if not change.writes:
            continue
        path, text = change.file.path, present.get(change.file.path)
        old = files.get(path)
        new = digest(change.file.text)
        if old is not None and text is not None and digest(text) in old.hashes:
            # An update of our own file: what it replaced first stays known.
            files[path] = replace(old, hashes=tuple(dict.fromkeys((digest(text), new))))
        else:
            files[path] = Entry((new,), text)
    made = tuple(dict.fromkeys((*journal.directories, *directories)))
    return Journal(files, made, options)


def settled(journal: Journal, changes: Sequence[Change]) -> Journal:
    """Return the journal once the changes are made."""
    written = {c.file.path: digest(c.file.text) for c in changes if c.writes}
    files = {
        path: replace(entry, hashes=(written[path],)) if path in written else entry
        for path, entry in journal.files.items()
    }
    return replace(journal, files=files)


def plan_undo(journal: Journal, present: Mapping[str, str | None]) -> list[Undo]:
    """Return what to do with each file of the journal, the last written first."""
    return [_undo(path, entry, present.get(path)) for path, entry in [*journal.files.items()][::-1]]


def _undo(path: str, entry: Entry, text: str | None) -> Undo:
    if text is None or text == entry.before:
        return Undo("gone", path)
    if digest(text) not in entry.hashes:
        return Undo("leave", path)
    if entry.before is None:
        return Undo("remove", path)
    return Undo("restore", path, entry.before)


def missing_directories(paths: Iterable[str], existing: Mapping[str, bool]) -> list[str]:
    """Return the directories to make for these, parents first; `existing` tells those there."""
    missing = []
    for path in paths:
        parts = []
        while path not in ("", "/") and not existing.get(path, False):
            parts.append(path)
            path = os.path.dirname(path)
        missing += parts[::-1]
    return list(dict.fromkeys(missing))
