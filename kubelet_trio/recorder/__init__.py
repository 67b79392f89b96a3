"""The flight recorder: what reached the agent and what it decided, in a bounded ring on disk."""

from __future__ import annotations

from kubelet_trio.recorder.format import (
    FORMAT_VERSION,
    MAGIC,
    Entry,
    Kind,
    RecordingError,
    encode_entry,
    read_entries,
    read_recording,
    write_recording,
)
from kubelet_trio.recorder.messages import read_body, read_message, write_message

__all__ = [
    "FORMAT_VERSION",
    "MAGIC",
    "Entry",
    "Kind",
    "RecordingError",
    "encode_entry",
    "read_body",
    "read_entries",
    "read_message",
    "read_recording",
    "write_message",
    "write_recording",
]
