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
from kubelet_trio.recorder.recorder import DIRECTORY, Recorder, Recording
from kubelet_trio.recorder.ring import LEAST_LIMIT, segment_contents
from kubelet_trio.recorder.runtime import RecordedRuntime
from kubelet_trio.recorder.taps import (
    RecordedExits,
    RecordedInputs,
    RecordedMounter,
    RecordedObjects,
    VolumeNotes,
)

__all__ = [
    "DIRECTORY",
    "FORMAT_VERSION",
    "LEAST_LIMIT",
    "MAGIC",
    "Entry",
    "Kind",
    "RecordedExits",
    "RecordedInputs",
    "RecordedMounter",
    "RecordedObjects",
    "RecordedRuntime",
    "Recorder",
    "Recording",
    "RecordingError",
    "VolumeNotes",
    "encode_entry",
    "read_body",
    "read_entries",
    "read_message",
    "read_recording",
    "segment_contents",
    "write_message",
    "write_recording",
]
