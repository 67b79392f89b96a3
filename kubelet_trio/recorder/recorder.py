"""The recorder of an agent: takes notes on the event loop, writes them from a thread.

A tap calls `note`, which appends a tuple to a list: no copy, no encoding, no I/O. The supervised
task `run` hands the list to a thread, at most every half second, and not at all while nothing
comes. What does not fit, into the list or onto the disk, is lost and counted; a GAP entry says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio

from kubelet_trio.model import Bell, Offload, WallClock, get_logger
from kubelet_trio.recorder.bodies import Variables, encode_json, encode_record
from kubelet_trio.recorder.format import Entry, Kind, encode_entry
from kubelet_trio.recorder.ring import Ring
from kubelet_trio.recorder.tape import Note, Tape

log = get_logger()

DIRECTORY = "recorder"  # below the root directory
INTERVAL = 0.5  # s between two batches
MOST_NOTES = 4000  # that wait for a batch: up to some 10 MB of messages; more are lost
# Notes that do not wait for the interval: in a burst they are messages, 30 KB a pod that starts.
_SOON = 100
END_LIMIT = 2.0  # s for the last batch
_JUMP = 1.0  # s by which the wall clock differs from the monotonic one: it was set


@dataclass(frozen=True, slots=True)
class Recording:
    """What a recorder writes about its agent.

    Attributes:
        limit: bytes of the ring.
        start: returns the agent's own fields of START; called in a thread.
        records: the pods' records as the agent has found them, encoded, by UID.
        read_records: returns them as they are now; called in a thread, raises OSError.
    """

    limit: int
    start: Callable[[], Mapping[str, Any]]
    records: Sequence[tuple[str, bytes]] = field(default=(), repr=False)
    read_records: Callable[[], Sequence[tuple[str, bytes]]] = tuple


class Recorder:
    """The flight recorder of one agent."""

    def __init__(
        self, root_dir: Path, recording: Recording, clock: WallClock, offload: Offload
    ) -> None:
        """Make a recorder that does not run yet; what is noted before it runs is kept.

        Args:
            root_dir: the agent's.
            recording: what it writes about its agent.
            clock: the wall clock.
            offload: runs the writer in threads, which are left when they hang.
        """
        self.variables = Variables()  # for the writer's thread
        ring = Ring(root_dir / DIRECTORY, recording.limit)
        self._writer = Writer(ring, recording, self.variables)
        self._clock = clock
        self._offload = offload
        # The writer's thread takes from the left: nothing is lost with a call that is cancelled.
        self._notes: deque[Note] = deque()
        self._overflow = 0  # notes lost since the agent's start
        self._news = Bell()
        self._hurry = Bell()
        self._writing = trio.Lock()
        self._offset: float | None = None  # of the wall clock to the monotonic one
        self._now: Callable[[], float] | None = None  # for threads, while the agent runs
        self._token: trio.lowlevel.TrioToken | None = None

    def note(self, kind: Kind, key: str, content: Any) -> bool:
        """Note an entry; `content` must not change later. Only in the Trio thread; never blocks.

        Returns False if it is lost.
        """
        notes = self._notes
        if len(notes) >= MOST_NOTES:
            self._overflow += 1
            return False
        notes.append(Note(trio.current_time(), kind, key, content))
        if len(notes) == 1:
            self._news.ring()
        elif len(notes) == _SOON:
            self._hurry.ring()
        return True

    def note_from_thread(self, kind: Kind, key: str, content: Any) -> None:
        """Note an entry in another thread, while the agent runs: from `begin` on."""
        now, token = self._now, self._token
        if now is None or token is None:
            return
        if len(self._notes) >= MOST_NOTES:
            self._overflow += 1
            return
        self._notes.append(Note(now(), kind, key, content))
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(self._news.ring, idempotent=True)

    @property
    def has_begun(self) -> bool:
        """Whether the agent runs, so that there is a time to note."""
        return self._now is not None

    @property
    def entries(self) -> int:
        """The number of entries written."""
        return self._writer.entries

    @property
    def lost(self) -> int:
        """The number of entries lost."""
        return self._writer.lost + self._overflow - self._writer.overflow

    @property
    def size(self) -> int:
        """The size of the ring in bytes."""
        return self._writer.size

    def begin(self) -> None:
        """Take notes from threads from now on. Called once by the agent, before `run`."""
        self._now = trio.lowlevel.current_clock().current_time
        self._token = trio.lowlevel.current_trio_token()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled, and then what is left, within 2 s."""
        # The first segment begins now, with what the agent has found.
        self._news.ring()
        task_status.started()
        try:
            while True:
                # A note rings only if it is the first: those that came during a write did not.
                if not self._notes:
                    await self._news.wait_ring()
                # Before the write, not after it: its thread takes the interpreter from the event
                # loop, and the first news of a pod mostly mean that there is work to do for it.
                with trio.move_on_after(INTERVAL):
                    await self._hurry.wait_ring()
                await self.flush()
        finally:
            with trio.move_on_after(END_LIMIT, shield=True):
                await self.flush()
                await self._offload(self._writer.close)

    async def flush(self) -> None:
        """Write what was noted until now. Returns only when the disk answers."""
        async with self._writing:
            self._hurry.clear()
            self._watch_clock()
            now, wall = trio.current_time(), self._clock.time()
            await self._offload(self._writer.write, self._notes, self._overflow, now, wall)

    def _watch_clock(self) -> None:
        wall = self._clock.time()
        offset, before = wall - trio.current_time(), self._offset
        self._offset = offset
        if before is not None and abs(offset - before) > _JUMP:
            self.note(Kind.CLOCK, "", {"wall": wall, "jump": offset - before})


class Writer:
    """The part of a recorder that runs in threads, one call at a time."""

    def __init__(self, ring: Ring, recording: Recording, variables: Variables) -> None:
        """Take the ring that it alone writes, and what stands for the values of variables."""
        self._ring = ring
        self._recording = replace(recording, records=())
        self._first_records = recording.records  # until the first segment has begun
        self._tape = Tape(variables)
        self._offset = 0.0  # of the wall clock to the monotonic one
        self._has_started = False
        self._unwritten = 0  # entries that the ring has taken, and not written yet
        self._gap = 0  # entries lost since the last GAP
        self._reason = ""  # of that
        self._is_broken = False  # for the rest of a batch
        self._is_failing = False  # since some batch
        self.entries = 0
        self.lost = 0
        self.overflow = 0  # of the recorder, as far as it is in `lost`

    @property
    def size(self) -> int:
        return self._ring.size

    def write(self, notes: deque[Note], overflow: int, now: float, wall: float) -> None:
        """Write notes; what cannot be written is lost, and counted. Blocks.

        Args:
            notes: those that are in it now are taken from it, in order.
            overflow: the number of notes that were lost since the agent's start.
            now: the Trio time.
            wall: the wall time now, Unix seconds.
        """
        self._offset, self._is_broken = wall - now, False
        if overflow > self.overflow:
            self._lose(overflow - self.overflow, "entries came faster than they could be written")
            self.overflow = overflow
        gap = self._gap
        if gap:
            body = encode_json({"lost": gap, "reason": self._reason})
            self._add(Entry(notes[0].at if notes else now, Kind.GAP, "", body))
        if not self._has_started:
            self._begin(notes[0].at if notes else now)
        for _ in range(len(notes)):
            note = notes.popleft()
            try:
                for entry in self._tape.entries(note):
                    self._add(entry)
            # Text that no file can hold, such as half of a surrogate pair.
            except (TypeError, ValueError) as exc:
                self._lose(1, f"an entry of {note.kind.name} cannot be encoded: {exc}")
        self._flush()
        if not self._is_broken:
            self._gap -= gap
        elif gap:
            self._lose(-1, self._reason)  # a GAP is no loss

    def close(self) -> None:
        """Close the file. Blocks."""
        self._ring.close()

    def _begin(self, at: float) -> None:
        """Begin the first segment of the agent."""
        try:
            self._ring.begin(self._snapshot(at))
        except OSError as exc:
            self._fail(exc)

    def _add(self, entry: Entry) -> None:
        if self._is_broken:
            self._lose(1, self._reason)
            return
        frame = encode_entry(entry)
        if not self._ring.fits(len(frame)):
            self._lose(1, f"an entry of {entry.kind.name} has {len(frame)} bytes")
            return
        self._unwritten += 1
        try:
            self._count(self._ring.add(frame, self._snapshot(entry.at)))
        except OSError as exc:
            self._fail(exc)

    def _flush(self) -> None:
        try:
            self._count(self._ring.flush())
        except OSError as exc:
            self._fail(exc)

    def _count(self, written: int) -> None:
        self._unwritten -= written
        self.entries += written
        if written and self._is_failing and not self._is_broken:
            self._is_failing = False
            log.info("recorder.works_again", lost=self.lost)

    def _fail(self, exc: OSError) -> None:
        self._lose(self._unwritten, str(exc))
        self._unwritten, self._is_broken = 0, True
        if not self._is_failing:
            self._is_failing = True
            log.warning("recorder.failed", error=str(exc))
        # The next entry begins a segment, whose snapshot has what is lost now.
        self._ring.close()

    def _lose(self, count: int, reason: str) -> None:
        self.lost += count
        self._gap += count
        self._reason = reason

    def _snapshot(self, at: float) -> Callable[[int], list[bytes]]:
        def frames(limit: int) -> list[bytes]:
            is_first, self._has_started = not self._has_started, True
            records, are_whole = self._records(is_first)
            told = {
                "reason": "start" if is_first else "segment",
                "wall": at + self._offset,
                **self._recording.start(),
            }

            def start(is_complete: bool) -> bytes:
                return encode_json({**told, "is_complete": is_complete and are_whole})

            return self._tape.snapshot(at, start, records)(limit)

        return frames

    def _records(self, is_first: bool) -> tuple[list[tuple[str, bytes]], bool]:
        """Return the pods' records, and whether they are all."""
        found = []
        try:
            read = self._first_records if is_first else self._recording.read_records()
            self._first_records = ()
            for uid, content in read:
                found.append((uid, encode_record(content)))
        except (OSError, ValueError):
            return found, False
        return found, True
