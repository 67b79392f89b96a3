"""The errors of this room.

GaveUpError     a child failed more often than its policy allows; the parent decides
"""

from __future__ import annotations


class GaveUpError(Exception):
    """A child used up its restarts. `child` is its path; the cause is its last failure."""

    def __init__(self, child: str, restarts: int) -> None:
        super().__init__(f"{child}: gave up after {restarts} restarts")
        self.child = child
        self.restarts = restarts
