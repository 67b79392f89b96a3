"""The state of what was recorded last, and the frames that the writer's thread makes of news.

Only the thread that writes uses a `Tape`. It encodes each entry, drops those that say what the last
entry of their key has said, and keeps the last of each key: a segment's snapshot consists of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kubelet_trio.recorder.bodies import (
    Failure,
    Listed,
    Variables,
    encode_answer,
    encode_call,
    encode_checkpoint,
    encode_entry_of_list,
    encode_json,
    encode_object,
    encode_plan,
    encode_pod,
    encode_request,
    encode_status,
    list_body,
)
from kubelet_trio.recorder.format import Entry, Kind, encode_frame
from kubelet_trio.recorder.unseen import UnseenCalls

if TYPE_CHECKING:
    from kubelet_trio.recorder.offers import Offers

_MOST_KEYS = 50_000  # of one kind; the oldest are forgotten


class Note(NamedTuple):
    """What a tap has noted: an entry that is not encoded yet."""

    at: float
    kind: Kind
    key: str
    content: Any  # None: what the key names is gone


class Forget:
    """As the content of a note: the key is of no interest any more. Nothing is written."""


FORGET = Forget()


class Tape:
    """Makes frames of notes."""

    def __init__(self, variables: Variables) -> None:
        """`variables` stands for what plugins give."""
        self._variables = variables
        self._last: dict[Kind, dict[str, bytes]] = {
            kind: {}
            for kind in (
                *(Kind.WANTED, Kind.SOURCES, Kind.OBJECT, Kind.READ),
                *(Kind.PROBE, Kind.PLAN, Kind.STATUS, Kind.SIGNALS, Kind.LOGIND),
                *(Kind.MACHINE, Kind.CHECKPOINT),
            )
        }
        # By method and id: the entries of lists, of which a snapshot has one entry each.
        self._listed: dict[str, dict[str, bytes]] = {}
        self._wanted: dict[str, int] = {}  # hashes of what counts of the desired pods
        self._unseen = UnseenCalls()
        self._offers: Offers | None = None  # of plugins, once there is one
        self._asked: dict[int, tuple[str, bytes]] = {}  # questions that have no answer yet

    def entries(self, note: Note) -> Iterator[Entry]:
        """Yield the entries that a note makes: one, or none if it brings nothing new."""
        if isinstance(note.content, Forget):
            self._last[note.kind].pop(note.key, None)
        elif isinstance(note.content, Listed):
            yield from self._list(note, note.content)
        elif note.kind is Kind.PLUGIN:
            yield from self._offered().entries(note.at, note.key, note.content)
        elif note.content is None and note.kind in self._last:
            yield from self._gone(note)
        else:
            if note.kind is Kind.WANTED:
                body, told = encode_pod(note.content)
            else:
                body = told = _encode(note, self._variables)
            if note.kind is Kind.READ and not isinstance(note.content[0], Failure):
                self._unseen.see(note.key.partition(":")[2])
            if self._is_news(note, body, told):
                yield Entry(note.at, note.kind, note.key, body)
            # By now it is written: a segment that it began has it after its snapshot.
            self._keep_call(note, body)

    def _keep_call(self, note: Note, body: bytes) -> None:
        if note.kind is Kind.CALL:
            number, request = note.content
            self._unseen.begin(str(number), note.key, request, body)
        elif note.kind is Kind.ANSWER:
            (answer,) = note.content
            self._unseen.end(note.key, answer, body, failed=isinstance(answer, Failure))
        elif note.kind is Kind.ASKED and note.content.request is not None:
            self._asked[note.content.number] = note.key, body
        elif note.kind is Kind.ASKED:
            self._asked.pop(note.content.number, None)

    def _offered(self) -> Offers:
        if self._offers is None:
            from kubelet_trio.recorder.offers import Offers

            self._offers = Offers()
        return self._offers

    def snapshot(
        self, at: float, start: Callable[[bool], bytes], records: Sequence[tuple[str, bytes]]
    ) -> Callable[[int], list[bytes]]:
        """Return the function that makes the frames of a snapshot of at most so many bytes.

        Args:
            at: its time.
            start: returns the body of START, given whether the snapshot is complete.
            records: the pods' records, by UID.
        """

        def frames(limit: int) -> list[bytes]:
            end = encode_frame(at, Kind.SNAPSHOT, "", b"")
            first = encode_frame(at, Kind.START, "", start(True))
            found, size, is_complete = [], len(first) + len(end) + 1, True
            for kind, key, body in self._state(records):
                frame = encode_frame(at, kind, key, body)
                if size + len(frame) <= limit:
                    found.append(frame)
                    size += len(frame)
                else:
                    is_complete = False
            if not is_complete:
                first = encode_frame(at, Kind.START, "", start(False))
            return [first, *found, end]

        return frames

    def _state(self, records: Sequence[tuple[str, bytes]]) -> Iterator[tuple[Kind, str, bytes]]:
        for uid, body in records:
            yield Kind.RECORD, uid, body
        for kind, last in self._last.items():
            if kind is Kind.READ:
                for method, listed in self._listed.items():
                    yield kind, f"{method}:", list_body(list(listed.values()), ())
            for key, body in last.items():
                yield kind, key, body
        yield from self._unseen.entries()
        yield from self._offers.state() if self._offers is not None else ()
        for key, body in self._asked.values():
            yield Kind.ASKED, key, body

    def _is_news(self, note: Note, body: bytes, told: bytes) -> bool:
        """Keep a body as the last of its key; return whether it says something new.

        `told` is the part of it that counts.
        """
        last = self._last.get(note.kind)
        if last is None:
            return True
        before = last.pop(note.key, None)
        last[note.key] = body  # the newest is the last
        if len(last) > _MOST_KEYS:
            del last[next(iter(last))]
        if told is body:
            return body != before
        wanted = hash(told)
        is_news = before is None or self._wanted.get(note.key) != wanted
        self._wanted[note.key] = wanted
        return is_news

    def _list(self, note: Note, news: Listed) -> Iterator[Entry]:
        method, _, _ = note.key.partition(":")
        listed = self._listed.setdefault(method, {})
        # A failure of the same call is over.
        is_mended = self._last[Kind.READ].pop(note.key, None) is not None
        bodies = []
        for entry in news.entries:
            self._unseen.see(entry.id)
            body = encode_entry_of_list(entry)
            if listed.get(entry.id) != body:
                listed[entry.id] = body
                bodies.append(body)
        gone = [id_ for id_ in news.gone if listed.pop(id_, None) is not None]
        for id_ in gone:
            self._unseen.see(id_)
            self._forget_object(id_)
        if bodies or gone or is_mended or news.is_first:
            body = list_body(bodies, gone, is_first=news.is_first)
            yield Entry(note.at, note.kind, note.key, body)

    def _gone(self, note: Note) -> Iterator[Entry]:
        if self._last[note.kind].pop(note.key, None) is not None:
            yield Entry(note.at, note.kind, note.key)
        self._wanted.pop(note.key, None)
        if note.kind is Kind.STATUS:  # the pod is gone from the node
            self._last[Kind.PLAN].pop(note.key, None)
            probes = self._last[Kind.PROBE]
            for key in [key for key in probes if key.startswith(f"{note.key}/")]:
                del probes[key]

    def _forget_object(self, object_id: str) -> None:
        """Forget the answers about a sandbox or container that does not exist any more."""
        reads = self._last[Kind.READ]
        for method in ("container_status", "pod_sandbox_status"):
            reads.pop(f"{method}:{object_id}", None)
        commands = f"exec_sync:{object_id}/"
        for key in [key for key in reads if key.startswith(commands)]:
            del reads[key]


def _encode(note: Note, variables: Variables) -> bytes:
    kind, content = note.kind, note.content
    if content is None:
        return b""
    if kind is Kind.OBJECT:
        return encode_object(content, note.key.partition("/")[0])
    if kind is Kind.STATUS:
        return encode_status(content)
    if kind is Kind.PLAN:
        return encode_plan(content)
    if kind is Kind.CALL:
        number, request = content
        return encode_call(number, request, variables)
    if kind is Kind.READ or kind is Kind.ANSWER:
        return encode_answer(content[0])
    if kind is Kind.REQUEST:
        return encode_request(content)
    if kind is Kind.CHECKPOINT:
        return encode_checkpoint(content(), variables)
    if isinstance(content, Failure) or kind is Kind.ASKED:
        return encode_json(content.fields())
    return encode_json(content)
