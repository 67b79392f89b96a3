"""Decodes of an answer only what is needed: the entries of a list that have changed, a few fields.

betterproto2 takes some 40 ms to decode a list of 250 containers, and little changes between two
relists. So entries are compared as bytes, and only new ones are decoded. Of an entry that cannot
change any more, as a container that has exited, only the id is read: a node may have thousands.
What is to be done at once is done in steps of a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, Self, TypeVar

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ID = 1 << 3 | _BYTES  # the tag of an entry's id, and of an answer's entries
# The work of a step, and what an entry takes of it: some 2 ms, 2 us, 15 us and 150 us.
_STEP, _KNOWN, _COMPARED, _DECODED = 1000, 1, 8, 80


class _Parsed(Protocol):
    id: str

    @classmethod
    def parse(cls, data: bytes) -> Self: ...


EntryT = TypeVar("EntryT", bound=_Parsed)


def split_fields(data: bytes) -> list[bytes]:
    """Cut a message into its top-level fields, tags included. Raises ValueError if malformed."""
    fields = []
    at, size = 0, len(data)
    try:
        while at < size:
            start = at
            tag, at = _varint(data, at)
            at = _skip(data, at, tag & 7)
            fields.append(data[start:at])
    except IndexError:
        at = size + 1
    if at != size:
        raise ValueError("the message is cut short")
    return fields


def fields_of(data: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message by number, the last of each: a varint, or the bytes of others.

    Raises ValueError if it is malformed.
    """
    fields: dict[int, int | bytes] = {}
    at, size = 0, len(data)
    try:
        while at < size:
            tag, at = _varint(data, at)
            wire_type = tag & 7
            if wire_type == _VARINT:
                fields[tag >> 3], at = _varint(data, at)
                continue
            start = _varint(data, at)[1] if wire_type == _BYTES else at
            at = _skip(data, at, wire_type)
            fields[tag >> 3] = data[start:at]
    except IndexError:
        at = size + 1
    if at != size:
        raise ValueError("the message is cut short")
    return fields


def number(fields: Mapping[int, int | bytes], field: int) -> int:
    """Return a varint among `fields_of` a message; 0 if it is not there. Raises ValueError."""
    found = fields.get(field, 0)
    if not isinstance(found, int):
        raise ValueError(f"field {field} is no varint")
    return found & 0xFFFFFFFFFFFFFFFF


def sized(fields: Mapping[int, int | bytes], field: int) -> bytes:
    """Return a text or message among `fields_of` a message; empty if it is not there.

    Raises ValueError if it is a varint.
    """
    found = fields.get(field, b"")
    if isinstance(found, int):
        raise ValueError(f"field {field} is a varint")
    return found


def id_of(entry: bytes) -> str:
    """Return the id of an entry, its field 1. Raises ValueError."""
    # It comes first, as runtimes write it, or is looked for.
    if len(entry) > 1 and entry[0] == _ID and (size := entry[1]) < min(0x80, len(entry) - 1):
        return entry[2 : 2 + size].decode()
    return sized(fields_of(entry), 1).decode()


def canonical(entry: bytes) -> bytes:
    """Return an encoded message with its top-level fields in sorted order."""
    # Go encodes the entries of a map in random order. For these messages labels and annotations
    # are top-level fields, so sorting makes equal messages equal bytes.
    return b"".join(sorted(split_fields(entry)))


class ListDecoder(Generic[EntryT]):
    """Decodes the entries of one answer, reusing those that did not change.

    Attributes:
        entries: this answer's entries by id, once all steps are taken.
        by_encoding: the same by canonical encoding, without those that are final.
    """

    def __init__(
        self,
        answer: bytes,
        parse: Callable[[bytes], EntryT],
        previous: Mapping[bytes, EntryT],
        previous_entries: Mapping[str, EntryT],
        is_final: Callable[[EntryT], bool] = lambda _entry: False,
    ) -> None:
        """Take an answer.

        Args:
            answer: the list answer, its entries in field 1.
            parse: decodes an entry.
            previous: the last answer's entries by canonical encoding.
            previous_entries: the last answer's entries by id.
            is_final: whether an entry cannot change any more.
        """
        self._answer = answer
        self._parse = parse
        self._previous, self._previous_entries = previous, previous_entries
        self._is_final = is_final
        self.entries: dict[str, EntryT] = {}
        self.by_encoding: dict[bytes, EntryT] = {}

    def steps(self) -> Iterator[None]:
        """Do the work, stopping after each step of it. Raises ValueError if it is malformed."""
        work = 0
        for encoded in entries_of(self._answer):
            work += self._take(encoded)
            if work >= _STEP:
                work = 0
                yield

    def _take(self, encoded: bytes) -> int:
        """Take one entry, and return the work."""
        known = self._previous_entries.get(id_of(encoded))
        if known is not None and self._is_final(known):
            self.entries[known.id] = known
            return _KNOWN
        key = canonical(encoded)
        entry, work = self._previous.get(key), _COMPARED
        if entry is None:
            entry, work = self._parse(encoded), _DECODED
            # A map in a nested message may still be in another order: compare decoded entries.
            known = self._previous_entries.get(entry.id)
            if known is not None and known == entry:
                entry = known
        self.by_encoding[key] = entry
        self.entries[entry.id] = entry
        return work


def decode_changed(
    answer: bytes,
    parse: Callable[[bytes], EntryT],
    previous: Mapping[bytes, EntryT],
    previous_entries: Mapping[str, EntryT],
) -> tuple[dict[str, EntryT], dict[bytes, EntryT]]:
    """Decode a list answer in one go; see `ListDecoder`. Raises ValueError if it is malformed."""
    decoder = ListDecoder(answer, parse, previous, previous_entries)
    for _ in decoder.steps():
        pass
    return decoder.entries, decoder.by_encoding


def entries_of(answer: bytes) -> Iterator[bytes]:
    """Yield the entries (field 1) of a list answer, encoded. Raises ValueError if malformed."""
    at, size = 0, len(answer)
    while at < size:
        try:
            tag, start = _varint(answer, at)
            end = _skip(answer, start, tag & 7)
        except IndexError:
            end = size + 1
        if end > size:
            raise ValueError("the message is cut short")
        if tag == _ID:
            yield answer[_varint(answer, start)[1] : end]
        at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:  # the common case: one byte
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("a varint is too long")


def _skip(data: bytes, at: int, wire_type: int) -> int:
    if wire_type == _BYTES:
        size, at = _varint(data, at)
        return at + size
    if wire_type == _VARINT:
        return _varint(data, at)[1]
    if wire_type == _FIXED64:
        return at + 8
    if wire_type == _FIXED32:
        return at + 4
    raise ValueError(f"unknown wire type {wire_type}")
