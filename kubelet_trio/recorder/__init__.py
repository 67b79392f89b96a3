"""The flight recorder: what reached the agent and what it decided, in a bounded ring on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.recorder.evictions import (
    ALL_PODS,
    OVER_LIMITS,
    EvictionBody,
    RecordedEvictions,
    SignalsBody,
    UsageBody,
)
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

if TYPE_CHECKING:
    from kubelet_trio.recorder.asked import AskNotes
    from kubelet_trio.recorder.claims import (
        DriverNotes,
        RecordedClaims,
        RecordedDrivers,
        RecordedSlices,
        by_name,
        names_of,
    )
    from kubelet_trio.recorder.collect import read_ring
    from kubelet_trio.recorder.devices import recorded_plugin
    from kubelet_trio.recorder.logind import RecordedLogind
    from kubelet_trio.recorder.select import PodFilter, pod_uids, since
    from kubelet_trio.recorder.show import Span, entry_lines

# Of the commands, or of a few nodes, not of every agent.
_DEFERRED = {
    "AskNotes": "asked",
    "DriverNotes": "claims",
    "PodFilter": "select",
    "RecordedClaims": "claims",
    "RecordedDrivers": "claims",
    "RecordedSlices": "claims",
    "by_name": "claims",
    "names_of": "claims",
    "RecordedLogind": "logind",
    "Span": "show",
    "entry_lines": "show",
    "pod_uids": "select",
    "read_ring": "collect",
    "recorded_plugin": "devices",
    "since": "select",
}

__all__ = [
    "ALL_PODS",
    "DIRECTORY",
    "FORMAT_VERSION",
    "LEAST_LIMIT",
    "MAGIC",
    "OVER_LIMITS",
    "AskNotes",
    "DriverNotes",
    "Entry",
    "EvictionBody",
    "Kind",
    "PodFilter",
    "RecordedClaims",
    "RecordedDrivers",
    "RecordedEvictions",
    "RecordedExits",
    "RecordedInputs",
    "RecordedLogind",
    "RecordedMounter",
    "RecordedObjects",
    "RecordedRuntime",
    "RecordedSlices",
    "Recorder",
    "Recording",
    "RecordingError",
    "SignalsBody",
    "Span",
    "UsageBody",
    "VolumeNotes",
    "by_name",
    "encode_entry",
    "entry_lines",
    "names_of",
    "pod_uids",
    "read_body",
    "read_entries",
    "read_message",
    "read_recording",
    "read_ring",
    "recorded_plugin",
    "segment_contents",
    "since",
    "write_message",
    "write_recording",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
