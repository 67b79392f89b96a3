"""Who is connected to a server, and who makes room.

A connection is a stranger's until a request on it has passed the server's gate; on a server without
a gate it is one while no request of its is being answered. Strangers are bounded, by address and
in all. One too many closes the one that was silent longest: silent connections keep nobody out,
and whoever has passed the gate (the API server, as a rule) is not counted at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Seat:
    """The place of one connection."""

    def __init__(self, seats: Seats | None = None, source: str = "") -> None:
        self.source = source
        self.scope = trio.CancelScope()  # of the connection: cancelled to make room
        self.is_stranger = True
        self._seats = seats

    @contextmanager
    def passed(self, *, for_good: bool) -> Iterator[None]:
        """Hold while a request that has passed is answered; `for_good`: from now on."""
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
    """The places of a server."""

    def __init__(self, most: int, per_source: int) -> None:
        self._most, self._per_source = most, per_source
        self._taken: set[Seat] = set()
        self._waiting: dict[Seat, None] = {}  # in the order in which they fell silent
        self._of_source: dict[str, dict[Seat, None]] = {}  # of the waiting ones

    def take(self, source: str) -> Seat | None:
        """Return a place for a new connection; None where all others are being answered."""
        neighbours = self._of_source.get(source, {})
        if source and len(neighbours) >= self._per_source:
            self._evict(next(iter(neighbours)))
        elif len(self._taken) >= self._most:
            if not self._waiting:
                return None
            self._evict(next(iter(self._waiting)))
        seat = Seat(self, source)
        self._taken.add(seat)
        self.note_waiting(seat)
        return seat

    def leave(self, seat: Seat) -> None:
        """The connection has ended."""
        self._taken.discard(seat)
        self._forget_waiting(seat)

    def note_passed(self, seat: Seat, *, for_good: bool) -> None:
        self._forget_waiting(seat)
        if for_good:
            self._taken.discard(seat)

    def note_waiting(self, seat: Seat) -> None:
        if seat in self._taken:
            self._waiting[seat] = None
            self._of_source.setdefault(seat.source, {})[seat] = None

    def _evict(self, seat: Seat) -> None:
        self.leave(seat)
        seat.scope.cancel()

    def _forget_waiting(self, seat: Seat) -> None:
        self._waiting.pop(seat, None)
        of_source = self._of_source.get(seat.source, {})
        of_source.pop(seat, None)
        if not of_source:
            self._of_source.pop(seat.source, None)
