"""The number of connections to a server: who counts, and which connection is closed for a new one.

A connection is a stranger's until one of its requests has passed the server's gate. Without a
gate it is a stranger's whenever none of its requests is being answered. The number of strangers is
limited per address and in total. A new connection beyond the limit closes the stranger that has
been silent longest, so silent connections cannot keep others out. Clients that have passed the
gate (usually the API server) do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Seat:
    """One connection, as the limits count it."""

    def __init__(self, seats: Seats | None = None, source: str = "") -> None:
        self.source = source
        self.scope = trio.CancelScope()  # of the connection's task: cancelled to make room
        self.is_stranger = True
        self._seats = seats

    @contextmanager
    def passed(self, *, for_good: bool) -> Iterator[None]:
        """Count the connection as known while a request is answered; `for_good`: from now on."""
        self.is_stranger = False
        if self._seats is not None:
            self._seats.note_passed(self, for_good=for_good)
        try:
            yield
        finally:
            if not for_good:
                self.is_stranger = True
                if self._seats is not None:
                    self._seats.note_waiting(self)


class Seats:
    """The counted connections of a server."""

    def __init__(self, limit: int, per_source: int) -> None:
        self._limit, self._per_source = limit, per_source
        self._taken: set[Seat] = set()
        # Dictionaries as ordered sets: the connection that fell silent first comes first.
        self._waiting: dict[Seat, None] = {}
        self._waiting_by_source: dict[str, dict[Seat, None]] = {}

    def take(self, source: str) -> Seat | None:
        """Return a seat for a new connection; None if all others are being answered."""
        # The address's own limit first: one address must not push out all others.
        neighbours = self._waiting_by_source.get(source, {})
        if source and len(neighbours) >= self._per_source:
            self._evict(next(iter(neighbours)))
        elif len(self._taken) >= self._limit:
            if not self._waiting:
                return None
            self._evict(next(iter(self._waiting)))
        seat = Seat(self, source)
        self._taken.add(seat)
        self.note_waiting(seat)
        return seat

    def leave(self, seat: Seat) -> None:
        """Give the seat of an ended connection back."""
        self._taken.discard(seat)
        self._forget_waiting(seat)

    def note_passed(self, seat: Seat, *, for_good: bool) -> None:
        self._forget_waiting(seat)
        if for_good:
            self._taken.discard(seat)

    def note_waiting(self, seat: Seat) -> None:
        if seat in self._taken:
            self._waiting[seat] = None
            self._waiting_by_source.setdefault(seat.source, {})[seat] = None

    def _evict(self, seat: Seat) -> None:
        self.leave(seat)
        seat.scope.cancel()

    def _forget_waiting(self, seat: Seat) -> None:
        self._waiting.pop(seat, None)
        of_source = self._waiting_by_source.get(seat.source, {})
        of_source.pop(seat, None)
        if not of_source:
            self._waiting_by_source.pop(seat.source, None)
