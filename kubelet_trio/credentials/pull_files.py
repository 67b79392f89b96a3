"""The files of pull records: `<root-dir>/image_manager/pulled` and `pulling`. Blocks.

Names and contents are the Go kubelet's: each agent can read the other's files. Writes are atomic. A
file that cannot be read is renamed to a name that the Go kubelet ignores, and still counts as a
pull.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from kubelet_trio.credentials.pulled import (
    INTENT,
    RECORD,
    VERSION,
    VERSIONS,
    PulledRecord,
    PullIntent,
    file_name,
    updated_at,
)
from kubelet_trio.model import get_logger, sync_directory, write_aside

log = get_logger()

_T = TypeVar("_T", PulledRecord, PullIntent)
_ASIDE = "unreadable-"  # prefix of the files that could not be read


@dataclass(frozen=True, slots=True)
class Loaded:
    """The contents of the files."""

    records: dict[str, PulledRecord] = field(default_factory=dict)  # by `imageRef`
    intents: set[str] = field(default_factory=set)  # images
    unreadable: set[str] = field(default_factory=set)  # names of records
    unreadable_intents: set[str] = field(default_factory=set)  # names


class PullFiles:
    """Reads and writes the two directories."""

    def __init__(self, root_dir: Path) -> None:
        self._pulled = root_dir / "image_manager" / "pulled"
        self._pulling = root_dir / "image_manager" / "pulling"

    def load(self) -> Loaded:
        """Read everything. Raises OSError for a directory that cannot be listed."""
        loaded = Loaded()
        for path, record in _read(self._pulled, PulledRecord, RECORD):
            if record is not None and file_name(record.image_ref) == path.name:
                loaded.records[record.image_ref] = record
            else:
                loaded.unreadable.add(path.name.removeprefix(_ASIDE))
        for path, intent in _read(self._pulling, PullIntent, INTENT):
            if intent is not None and file_name(intent.image) == path.name:
                loaded.intents.add(intent.image)
            else:
                loaded.unreadable_intents.add(path.name.removeprefix(_ASIDE))
        return loaded

    def write(self, record: PulledRecord) -> None:
        # Synced: without its record, an image looks preloaded, and every pod could use it.
        _write(self._pulled, file_name(record.image_ref), record, is_synced=True)

    def remove(self, refs: Iterable[str], unreadable: Iterable[str] = ()) -> None:
        """Remove the records of images, and the files of unreadable ones."""
        for ref in refs:
            (self._pulled / file_name(ref)).unlink(missing_ok=True)
        for name in unreadable:
            (self._pulled / f"{_ASIDE}{name}").unlink(missing_ok=True)
            (self._pulled / name).unlink(missing_ok=True)

    def write_intent(self, image: str) -> None:
        # Not synced: only the name of an intent matters, and pods with `imagePullPolicy: Always`
        # would pay for a sync at each start.
        intent = PullIntent(INTENT, VERSION, image)
        _write(self._pulling, file_name(image), intent, is_synced=False)

    def remove_intent(self, image: str) -> None:
        (self._pulling / file_name(image)).unlink(missing_ok=True)


def _read(directory: Path, model: type[_T], kind: str) -> Iterator[tuple[Path, _T | None]]:
    """Yield path and content of each file; None for a file that cannot be read."""
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.name.startswith(f"{_ASIDE}sha256-"):
            yield path, None
        if not path.name.startswith("sha256-") or path.name.endswith(".tmp"):
            continue  # as isValidCacheFile in images/pullmanager/fs_pullrecords.go
        try:
            yield path, _decoded(path.read_bytes(), model, kind)
        except (OSError, ValueError, RecursionError) as exc:
            aside = path.with_name(f"{_ASIDE}{path.name}")
            log.error(
                "credentials.record_unreadable", path=str(path), kept_as=str(aside), error=str(exc)
            )
            # Renamed, not deleted: it still shows that the image was pulled.
            path.rename(aside)
            yield path, None


def _decoded(text: bytes, model: type[_T], kind: str) -> _T:
    """Return a record. Raises ValueError (msgspec.DecodeError is one)."""
    found = msgspec.json.decode(text, type=model)
    if found.kind != kind or found.api_version not in VERSIONS:
        raise ValueError(f"{found.api_version} {found.kind} is not a supported {kind}")
    if isinstance(found, PulledRecord):
        updated_at(found)
    return found


def _write(
    directory: Path, name: str, content: PulledRecord | PullIntent, *, is_synced: bool
) -> None:
    for made in (directory.parent, directory):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_aside(directory / name, msgspec.json.encode(content) + b"\n", sync=is_synced)
    if is_synced:
        sync_directory(directory)
