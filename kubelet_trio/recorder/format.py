"""The format of recordings: entries, the segments of the ring, and packed files.

**Entry.** What reached the agent, or what it decided, at one time. `at` is in seconds of the
agent's monotonic clock (`trio.current_time`); START says which wall time that was. Bodies are JSON
objects in UTF-8, or empty where the table says so. Messages of CRI are objects of their fields by
their names in CRI's protobuf definition, enums as numbers, bytes in base64, as
`messages.write_message` makes them and `messages.read_message` reads them back. Values that may
be secret are left out (`masks` has the table).

    kind     key                    body
    START    ""                     a segment begins: {"reason": "start" | "segment", "version",
                                    "node", "instance", "wall": Unix s at `at`, "boot_id",
                                    "is_complete": false if the snapshot did not fit, "only":
                                    [UID] if only these pods were chosen of it, "settings":
                                    what decisions depend on, see `recorder.settings`,
                                    "device_plugins": whether the node has a manager of them,
                                    "claims": "api" or "local": who allocates them, "claims_left":
                                    whether the agent has found a checkpoint of some}
    RECORD   pod UID                snapshots: the pod's record as on disk
    WANTED   source/UID             a desired pod (core/v1 Pod), where more than its status and
                                    resourceVersion differ; empty: not desired any more.
                                    `source` is "file", "http", "api", "embedded" or another name
                                    of a source; "" if it is not known
    SOURCES  ""                     {"all_ready": bool, "kept": [UID]}, at changes: whether every
                                    source has delivered, and which other pods are kept
    OBJECT   Kind/namespace/name    an object that pods refer to, and Node//name; empty: it is gone
    CALL     CRI method             a changing call began: {"call": number, "request": message}
    ANSWER   number of the call     {"ok": result} or {"error": class, "text", "code"}
    READ     method:id              the answer of a reading call where it differs from the last of
                                    this key: {"ok": result} or {"error", "text", "code"}
    EXIT     container id           its process ended, or had ended when it was looked for: {"pid"}
    PROBE    UID/container/kind     a finding that differs from the last: {"result": "success" |
                                    "failure" | "unknown", "container": its id, "text"}; kind:
                                    liveness, readiness, startup; thresholds are not counted yet
    VOLUME   operation              {"call": number, "args": [...]} when it begins, {"call",
                                    "ok": null} or {"call", "error", "text"} when it ends: one
                                    that hangs has no end. Of `Mounter`: its arguments, with the
                                    "errno" of an error; of a CSI driver ("NodeStageVolume"): the
                                    driver, the volume's handle and the path
    CLOCK    ""                     the wall clock jumped: {"wall": Unix s at `at`, "jump": s}
    PLAN     pod UID                what a sync decided, where it differs from the last: {"lines":
                                    [...], "plan": its fields}
    STATUS   pod UID                the status as published (core/v1 PodStatus), where it differs;
                                    empty: it is not shown any more
    SIGNALS  ""                     what a look of the eviction manager has found, where it counts:
                                    {"look": its number, "observed": {signal: {"available",
                                    "capacity"}}, "layout", "is_calm": no threshold is met}, or
                                    {"look", "error"}
    USAGE    "node" or "limits"     the usage of all pods, or of those that exceed limits of their
                                    own, by which pods are evicted: {"seconds" it took to read,
                                    "pods": {UID: usage}} or {"seconds", "error"}
    DECISION pod UID                {"what": "evict", "signal", "grace", "message"}
    LOGIND   method                 what logind has told, where it differs from the last: {"ok":
                                    result} or {"error"}; `open`, `inhibit_delay`, `override_delay`,
                                    `inhibit`, `is_preparing`, `wait_change`
    REQUEST  what/UID               what a user has asked for, and was not refused: "restart":
                                    {"container": name, or "" for all}, "debug": {"manifest": of
                                    an ephemeral container}, "grace": {"seconds"}; "remove" without
                                    a UID: {}, all pods are to end for good
    MACHINE  ""                     the CPUs and NUMA nodes that the managers give away
                                    (`managers.Machine`), if the node has managers
    CHECKPOINT file                 the state of a manager, as its checkpoint has it; the first
                                    one is what the agent has found. AllocResp of devices is as in
                                    ASKED. Of claims it is that only with "claims_left", or in a
                                    snapshot
    PLUGIN   device/resource/number  what a device plugin offers, where it differs from the last:
                                    {"options": {"pre_start", "has_preference"}, "devices": {id:
                                    {"health", "nodes"}}, "gone": [id]}; empty: it is gone. A plugin
                                    that registers again has another number
             driver/name/0          what is known of a DRA driver: {"connected": bool, "devices":
                                    {"pool/device": {"health", "message"}}}; empty: it is gone
    ASKED    method/resource        {"call": number, "request", "pod": UID and "container": name for
                                    which it is asked, if they are known} when a plugin is asked,
                                    and {"call", "ok": answer} or {"call", "error", "text"} when it
                                    has answered:
                                    `Allocate` (ContainerAllocateResponse, `cdi_devices` as names,
                                    values of `envs` as `masks` tells), `GetPreferredAllocation`,
                                    `PreStartContainer`; of a driver's
                                    name: `NodePrepareResources`, `NodeUnprepareResources`, with
                                    claims as namespace/name; of namespace/name: `ResourceClaim`
    MARK     ""                     {"what": "saved" | "stopped"}: until now nothing else came: the
                                    recording was saved, or the agent was asked to stop
    GAP      ""                     {"lost": entries, "reason"}: entries are missing here
    SNAPSHOT ""                     the end of the snapshot; from here on entries are news

Methods of CALL and READ are named as in `cri.Runtime`: `run_pod_sandbox`, `container_status`.

**Snapshot.** A segment begins with START, then what an agent that starts at that time would read
(RECORD, WANTED, SOURCES, OBJECT, READ, PROBE, SIGNALS, LOGIND, MACHINE, CHECKPOINT, PLUGIN, and for
the comparison PLAN and STATUS), the calls whose effect no reading has shown yet (CALL and, as far
as there is one, ANSWER; ASKED without an answer), then SNAPSHOT, all with one time. The first
segment of an agent has `"reason": "start"` and what was on disk then. So a replay can begin at any
START.

**Results** in `ok`: of a list call {"entries": [message]} with those that are new or changed,
and "gone": [id], so in a snapshot all; the agent's first list has "first": true, and is there even
if it is empty; of `exec_sync` {"exit_code"}, where the id is the container's, "/" and a checksum of
the command; of `container_status` {"status": message, "pid": int, 0 while it is not known}; of
`container_events` {"type", "created_at"} of an event; of another call that returns a message that
message; of `run_pod_sandbox`, `create_container`, `pull_image` and `sandbox_image` a string; else
null, a bool, or a list of messages.

**Bytes.** A segment is `MAGIC` and frames. A frame is the length of its payload and the CRC-32 of
that, both as 32-bit numbers, and the payload: time (64-bit float), kind (8 bits), length of the
key (16 bits), key in UTF-8, body. Numbers are big-endian. The last frame may be cut off, because
a crash can end the writing at any byte. A packed recording is the gzip of `MAGIC` and the
frames of all segments, oldest first.
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zlib

FORMAT_VERSION = 1
_MAGIC_START = b"kubelet-trio recording "
MAGIC = b"%b%d\n" % (_MAGIC_START, FORMAT_VERSION)
_GZIP = b"\x1f\x8b"

_FRAME = struct.Struct(">II")  # length of the payload, its CRC-32
_HEAD = struct.Struct(">dBH")  # time, kind, length of the key
FRAME_BYTES = _FRAME.size + _HEAD.size  # of an entry without key and body
MAX_ENTRY = 16 * 1024 * 1024  # bytes of a payload; CRI's messages have the same limit
_MAX_RECORDING = 8 << 30  # bytes unpacked: a bomb is refused
_PIECE = 1 << 20  # bytes that are unpacked at once


class Kind(IntEnum):
    """What an entry is about; the module has the table."""

    START = 1
    SNAPSHOT = 2
    GAP = 3
    RECORD = 4
    WANTED = 5
    SOURCES = 6
    OBJECT = 7
    CALL = 8
    ANSWER = 9
    READ = 10
    EXIT = 11
    PROBE = 12
    VOLUME = 13
    CLOCK = 14
    PLAN = 15
    STATUS = 16
    SIGNALS = 17
    USAGE = 18
    DECISION = 19
    MARK = 20
    LOGIND = 21
    MACHINE = 22
    CHECKPOINT = 23
    REQUEST = 24
    PLUGIN = 25
    ASKED = 26


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a recording."""

    at: float  # s of the agent's monotonic clock
    kind: Kind
    key: str
    body: bytes = b""


class RecordingError(ValueError):
    """A recording that cannot be read; the text names the file and the place in it."""


def encode_entry(entry: Entry) -> bytes:
    """Return the frame of an entry. Raises ValueError if it is too large."""
    return encode_frame(entry.at, entry.kind, entry.key, entry.body)


def encode_frame(at: float, kind: int, key: str, body: bytes) -> bytes:
    """Return the frame of an entry given by its fields. Raises ValueError if it is too large."""
    name = key.encode(errors="replace")
    if len(name) > 0xFFFF:
        raise ValueError(f"the key of an entry has {len(name)} bytes")
    payload = b"".join((_HEAD.pack(at, kind, len(name)), name, body))
    if len(payload) > MAX_ENTRY:
        raise ValueError(f"an entry has {len(payload)} bytes, more than {MAX_ENTRY}")
    return _FRAME.pack(len(payload), crc32(payload)) + payload


def read_entries(data: bytes, name: str = "recording") -> Iterator[Entry]:
    """Yield the entries of a segment, or of an unpacked recording, with `MAGIC` at its beginning.

    Entries of a kind that this version does not know are skipped. A last entry that is cut off
    is not an error.

    Raises:
        RecordingError: it is no recording, of another version, or a frame in it is damaged;
            the entries before that have been yielded. `name` is the file in its text.
    """
    return _entries((data,), name)


def _entries(pieces: Iterable[bytes], name: str) -> Iterator[Entry]:
    """Yield the entries of what comes in pieces, with `MAGIC` at its beginning."""
    left, offset, has_magic = b"", 0, False  # `left` begins at that offset of the whole
    for piece in pieces:
        left += piece
        at = 0
        if not has_magic:
            if len(left) < len(MAGIC):
                continue
            at, has_magic = _check_magic(left, name), True
        while (end := _end_of_frame(left, at, f"{name}: offset {offset + at}")) is not None:
            entry = _decode(left[at + _FRAME.size : end], f"{name}: offset {offset + at}")
            if entry is not None:
                yield entry
            at = end
        left, offset = left[at:], offset + at
    if not has_magic:
        _check_magic(left, name)


def _end_of_frame(data: bytes, at: int, place: str) -> int | None:
    """Return where the frame that begins at `at` ends; None if it is not there as a whole."""
    if at + _FRAME.size > len(data):
        return None
    size: int
    size, checksum = _FRAME.unpack_from(data, at)
    if not _HEAD.size <= size <= MAX_ENTRY:
        raise RecordingError(f"{place}: a frame of {size} bytes")
    start = at + _FRAME.size
    if start + size > len(data):
        return None
    if crc32(memoryview(data)[start : start + size]) != checksum:
        raise RecordingError(f"{place}: the checksum of a frame is wrong")
    return start + size


def _check_magic(data: bytes, name: str) -> int:
    """Return where the first frame begins."""
    if data.startswith(MAGIC):
        return len(MAGIC)
    if MAGIC.startswith(data):
        return len(data)  # cut off within it: no entries
    if not data.startswith(_MAGIC_START):
        raise RecordingError(f"{name}: this is no recording of kubelet-trio")
    version = data[len(_MAGIC_START) :].split(b"\n", 1)[0][:20].decode(errors="replace")
    raise RecordingError(
        f"{name}: a recording of format {version}; this version reads format {FORMAT_VERSION}"
    )


def _decode(payload: bytes, place: str) -> Entry | None:
    at, number, size = _HEAD.unpack_from(payload)
    start = _HEAD.size
    if start + size > len(payload):
        raise RecordingError(f"{place}: the key of an entry is longer than the entry")
    try:
        kind = Kind(number)
    except ValueError:
        return None
    key = payload[start : start + size].decode(errors="replace")
    return Entry(at, kind, key, payload[start + size :])


def write_recording(path: Path, entries: Iterable[Entry]) -> int:
    """Write a packed recording, replacing the file; return its size in bytes. Blocks.

    Raises OSError, and ValueError for an entry that is too large.
    """
    return write_frames(path, (encode_entry(entry) for entry in entries))


def write_frames(path: Path, frames: Iterable[bytes]) -> int:
    """Write a packed recording of encoded frames, likewise."""
    import gzip  # 1 MB that no agent needs

    with path.open("wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            packed.write(MAGIC)
            for frame in frames:
                packed.write(frame)
    return path.stat().st_size


def read_recording(path: Path) -> Iterator[Entry]:
    """Yield the entries of a packed recording, or of a segment of a ring. Blocks.

    It is unpacked piece by piece: a small file of gigabytes costs time, and no memory.

    Raises:
        RecordingError: as `read_entries`, or the file is not a whole gzip.
        OSError: it cannot be read.
    """
    return _entries(_unpacked(path), str(path))


def _unpacked(path: Path) -> Iterator[bytes]:
    """Yield the pieces of a packed recording without its gzip; of a segment as it is.

    Raises `RecordingError` and OSError.
    """
    import zlib

    size = 0
    with path.open("rb") as file:
        is_packed = file.peek(len(_GZIP)).startswith(_GZIP)
        stream = zlib.decompressobj(wbits=31)
        while piece := file.read(_PIECE):
            try:
                for unpacked in _inflated(stream, piece) if is_packed else (piece,):
                    size += len(unpacked)
                    if size > _MAX_RECORDING:
                        raise RecordingError(f"{path}: more than {_MAX_RECORDING} bytes")
                    yield unpacked  # what was cut off is a cut-off last entry
            except zlib.error as exc:
                raise RecordingError(f"{path}: the gzip is damaged: {exc}") from exc


def _inflated(stream: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    while True:
        unpacked = stream.decompress(piece, _PIECE)
        yield unpacked
        piece = stream.unconsumed_tail
        if not piece and len(unpacked) < _PIECE:
            return
