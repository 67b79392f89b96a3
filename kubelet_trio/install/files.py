"""Carries out a plan on the files below a root directory. Everything here blocks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kubelet_trio.install.contents import (
    MANIFESTS,
    PACKAGED_UNITS,
    Options,
    unit_text,
    wanted_files,
)
from kubelet_trio.install.facts import Facts
from kubelet_trio.install.plan import (
    Change,
    Journal,
    Undo,
    intent,
    missing_directories,
    plan_install,
    plan_undo,
    settled,
)
from kubelet_trio.model import JSON_ERRORS, sync_directory, write_aside

JOURNAL = "/var/lib/kubelet-trio/installed.json"
_VERSION = 1


class InstallError(Exception):
    """The installation's own state, or a file of it, cannot be used; the message says why."""


class _Document(msgspec.Struct):
    version: int
    journal: Journal


@dataclass(frozen=True, slots=True)
class Plan:
    """What an installation does to the files of a machine."""

    changes: Sequence[Change]
    directories: Sequence[str]  # to make, parents first
    options: Options

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.directories and not any(change.writes for change in self.changes)


class Tree:
    """The files of one machine, below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, path: str) -> Path:
        """Return the place of a machine's absolute path."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """Return a file's text; None if there is none. Raises OSError for others."""
        try:
            return self.at(path).read_bytes().decode("utf-8", "surrogateescape")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def journal(self) -> Journal:
        """Return the journal; an empty one if nothing is installed. Raises `InstallError`."""
        text = self.read(JOURNAL)
        if text is None:
            return Journal()
        try:
            document = msgspec.json.decode(text, type=_Document)
        except JSON_ERRORS as exc:
            raise InstallError(f"{self.at(JOURNAL)} is damaged: {exc}") from exc
        if document.version != _VERSION:
            raise InstallError(
                f"{self.at(JOURNAL)} is of version {document.version}: use the kubelet-trio that "
                "has written it"
            )
        return document.journal

    def plan(self, facts: Facts, options: Options) -> Plan:
        """Return the plan. Raises `PodCidrError`, `ContainerdConfigError`, OSError."""
        packaged = {path: self.read(path) for path in PACKAGED_UNITS}
        wanted = wanted_files(facts, options, unit_text(options.program), packaged)
        changes = plan_install(wanted, self._present(f.path for f in wanted), self.journal())
        for change in changes:
            if change.writes and self.at(change.file.path).is_symlink():
                raise InstallError(f"{change.file.path} is a symbolic link: replace it by its file")
        needed = [os.path.dirname(c.file.path) for c in changes if c.writes]
        return Plan(changes, self._missing([MANIFESTS, *needed]), options)

    def apply(self, plan: Plan) -> None:
        """Write the files, each at once or not at all. Raises OSError; run it again then."""
        present = self._present(change.file.path for change in plan.changes)
        journal = self.journal()
        directories = [*plan.directories, *self._missing([os.path.dirname(JOURNAL)])]
        journal = intent(plan.changes, present, journal, directories, plan.options)
        self._make(directories)
        self._save(journal)
        for change in plan.changes:
            if change.writes:
                self._write(change.file.path, change.file.text)
        self._save(settled(journal, plan.changes))

    def plan_undo(self) -> list[Undo]:
        """Return what an uninstallation does with each file. Raises `InstallError`, OSError."""
        journal = self.journal()
        return plan_undo(journal, self._present(journal.files))

    def undo(self, undos: Sequence[Undo]) -> None:
        """Carry it out, and remove the directories that are empty then. Raises OSError."""
        directories = self.journal().directories
        for undo in undos:
            if undo.action == "remove":
                self.at(undo.path).unlink(missing_ok=True)
            elif undo.action == "restore":
                self._write(undo.path, undo.text)
        self.at(JOURNAL).unlink(missing_ok=True)
        for directory in sorted(directories, key=len, reverse=True):
            path = self.at(directory)
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def _present(self, paths: Iterable[str]) -> dict[str, str | None]:
        return {path: self.read(path) for path in paths}

    def _missing(self, paths: Sequence[str]) -> list[str]:
        levels = {str(p) for path in paths for p in (Path(path), *Path(path).parents)}
        return missing_directories(paths, {p: self.at(p).is_dir() for p in levels})

    def _make(self, directories: Iterable[str]) -> None:
        for directory in directories:
            self.at(directory).mkdir(exist_ok=True, mode=0o755)

    def _write(self, path: str, text: str) -> None:
        place = self.at(path)
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o644
        write_aside(place, text.encode("utf-8", "surrogateescape"), mode=mode, sync=True)
        sync_directory(place.parent)

    def _save(self, journal: Journal) -> None:
        data = msgspec.json.encode(_Document(_VERSION, journal))
        write_aside(self.at(JOURNAL), data, sync=True)
        sync_directory(self.at(JOURNAL).parent)
