"""The files of pulls: `<root-dir>/image_manager/pulled` and `pulling`, one a record. Blocks.

Names and content are the Go kubelet's, which reads what this agent wrote and the other way
round. Writes are atomic. Records are synced: one that a power cut swallows would leave an image
that looks as if it had come with the node, for every pod to use. Of an intent the name is enough,
which a file system keeps in the order of the image's own files; pods whose images are always
pulled pay for no sync. A file that cannot be read is kept aside under a name that the Go kubelet
does not look at, and still counts as a pull.
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
_ASIDE = "unreadable-"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the files say."""

    records: dict[str, PulledRecord] = field(default_factory=dict)  # by `imageRef`
    intents: set[str] = field(default_factory=set)  # images
    unreadable: set[str] = field(default_factory=set)  # names of records
    unreadable_intents: set[str] = field(default_factory=set)  # names


class PullFiles:
    """The two directories."""

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
        _write(self._pulled, file_name(record.image_ref), record, is_synced=True)

    def remove(self, refs: Iterable[str], unreadable: Iterable[str] = ()) -> None:
        """Remove the records of images, and files that were kept aside."""
        for ref in refs:
            (self._pulled / file_name(ref)).unlink(missing_ok=True)
        for name in unreadable:
            (self._pulled / f"{_ASIDE}{name}").unlink(missing_ok=True)
            (self._pulled / name).unlink(missing_ok=True)

    def write_intent(self, image: str) -> None:
        intent = PullIntent(INTENT, VERSION, image)
        _write(self._pulling, file_name(image), intent, is_synced=False)

    def remove_intent(self, image: str) -> None:
        (self._pulling / file_name(image)).unlink(missing_ok=True)


def _read(directory: Path, model: type[_T], kind: str) -> Iterator[tuple[Path, _T | None]]:
    """Yield path and content of each file; None for what cannot be read."""
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.name.startswith(f"{_ASIDE}sha256-"):
            yield path, None
        if not path.name.startswith("sha256-") or path.name.endswith(".tmp"):
            continue  # the Go kubelet's rule
        try:
            yield path, _decoded(path.read_bytes(), model, kind)
        except (OSError, ValueError, RecursionError) as exc:
            aside = path.with_name(f"{_ASIDE}{path.name}")
            log.error(
                "credentials.record_unreadable", path=str(path), kept_as=str(aside), error=str(exc)
            )
            path.rename(aside)
            yield path, None


def _decoded(text: bytes, model: type[_T], kind: str) -> _T:
    """Raises ValueError (msgspec's errors are some)."""
    found = msgspec.json.decode(text, type=model)
    if found.kind != kind or found.api_version not in VERSIONS:
        raise ValueError(f"{found.api_version} {found.kind} is no {kind} that this agent knows")
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
