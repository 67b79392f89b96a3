"""The agent's latest log entries, in a ring of bounded size."""

from __future__ import annotations

from collections import deque

_ENTRIES = 500
_LONGEST = 2000  # characters of an entry
LEVELS = ("debug", "info", "warning", "error", "critical")


class RecentLog:
    """The latest entries, each with its level. Threads may add at any time."""

    def __init__(self, entries: int = _ENTRIES) -> None:
        self._entries: deque[tuple[str, str]] = deque(maxlen=entries)

    def add(self, level: str, text: str) -> None:
        """Add an entry; a long one is cut."""
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}… ({len(text)} characters)"
        self._entries.append((level, text))

    def lines(self, level: str = "", last: int | None = None) -> list[str]:
        """Return the entries of this level and above, the latest last; at most `last`."""
        least = LEVELS.index(level) if level in LEVELS else 0
        # A copy: another thread may add meanwhile.
        found = [text for own, text in self._entries.copy() if _rank(own) >= least]
        return found if last is None else found[max(len(found) - last, 0) :]


def _rank(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


# One for the process, as its log is: structlog has one configuration.
recent_log = RecentLog()
