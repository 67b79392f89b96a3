"""Reads the ring of an agent, running or dead, as one recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kubelet_trio.recorder.format import Entry, Kind, RecordingError, read_entries
from kubelet_trio.recorder.messages import write_message
from kubelet_trio.recorder.recorder import DIRECTORY
from kubelet_trio.recorder.ring import segment_contents


def read_ring(root_dir: Path) -> Iterator[Entry]:
    """Yield the entries of the ring below an agent's root directory, oldest first. Blocks.

    Where a segment is damaged, as after a power cut, the rest of it is missing; a GAP says so.
    Raises OSError.
    """
    at = 0.0
    for path, data in segment_contents(root_dir / DIRECTORY):
        try:
            for entry in read_entries(data, str(path)):
                at = entry.at
                yield entry
        except RecordingError as exc:
            yield Entry(at, Kind.GAP, "", write_message({"lost": 0, "reason": str(exc)}))
