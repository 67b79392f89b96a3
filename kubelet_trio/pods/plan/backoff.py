"""Back-off: how long a failing container, or a failing image pull, waits for its next try.

`BackOffPolicy` is pure arithmetic on entries. `BackOffTable` keeps them; it has one owner and
no clock. The rules are the Go kubelet's: the first restart comes at once and makes an entry, whose
delay counts from the container's end. Each restart doubles the delay up to the cap. It starts
over once the container has run for `reset_after` s without a restart. A key holds the container's
hash, so that a changed definition starts over, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from kubelet_trio.model import backoff_delay

# The pod's UID comes first, so that all keys of a pod can be dropped.
BackOffKey: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackOffEntry:
    """The crash or pull back-off of one key: `delay` s since `updated` (Unix time)."""

    delay: float
    updated: float
    note: str = ""  # the last error, for the message of a waiting container


@dataclass(frozen=True, slots=True)
class BackOffPolicy:
    """How a back-off grows. All in seconds."""

    base: float = 10.0
    cap: float = 300.0
    reset_after: float = 600.0
    spare_clean_exits: bool = False  # exit code 0 never grows a back-off (node setting)
    seed: bool = True  # compute a lost entry from the restart count, see `seeded`

    def __post_init__(self) -> None:
        if self.base <= 0 or self.cap <= 0:
            raise ValueError("a back-off needs a base and a cap above 0")
        # A cap below the base lowers the base too, as upstream's
        # `crashLoopBackOff.maxContainerRestartPeriod` does (KEP-4603).
        object.__setattr__(self, "base", min(self.base, self.cap))
        object.__setattr__(self, "reset_after", max(self.reset_after, 2 * self.cap))

    def next(self, entry: BackOffEntry | None, since: float, now: float) -> BackOffEntry:
        """Return the entry after one more try now, for a failure at `since` (Unix seconds)."""
        if entry is None or self.has_expired(entry, since):
            return BackOffEntry(self.base, now)
        return BackOffEntry(min(entry.delay * 2, self.cap), now)

    def ends(self, entry: BackOffEntry | None, since: float, now: float) -> float | None:
        """Return when a back-off counted from `since` ends; None if it is over or there is none."""
        # A `since` further ahead than the cap: the wall clock was set back. Without this the wait
        # would last until the clock has caught up.
        if entry is None or self.has_expired(entry, since) or since - now > self.cap:
            return None
        end = since + entry.delay
        return end if now < end else None

    def has_expired(self, entry: BackOffEntry, since: float) -> bool:
        """Return whether a failure at `since` came so late that the back-off starts over."""
        return since - entry.updated > self.reset_after

    def seeded(self, restarts: int, started: float) -> BackOffEntry | None:
        """Return the entry after a number of restarts, the last one at `started`; None: no entry.

        It replaces an entry that was lost with an earlier agent.
        """
        # The Go kubelet loses its back-offs when it restarts. Every crash-looping container of the
        # node then restarts at the same moment, and a delay of minutes starts over at 10 s.
        if restarts < 1 or not self.seed:
            return None
        return BackOffEntry(backoff_delay(self.base, self.cap, restarts), started)


class BackOffTable(Mapping[BackOffKey, BackOffEntry]):
    """The back-offs of a node's containers, or of its image pulls; reads as a mapping."""

    def __init__(self, policy: BackOffPolicy | None = None) -> None:
        self.policy = policy or BackOffPolicy()
        self._entries: dict[BackOffKey, BackOffEntry] = {}

    def __getitem__(self, key: BackOffKey) -> BackOffEntry:
        return self._entries[key]

    def __iter__(self) -> Iterator[BackOffKey]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: BackOffKey, entry: BackOffEntry) -> None:
        """Keep an entry that a plan made (`StartContainer.back_off`)."""
        self._entries[key] = entry

    def next(
        self, key: BackOffKey, now: float, *, since: float | None = None, note: str = ""
    ) -> BackOffEntry:
        """Advance the back-off of a key after a failure at `since` (default: now)."""
        entry = self.policy.next(self._entries.get(key), now if since is None else since, now)
        self._entries[key] = replace(entry, note=note)
        return self._entries[key]

    def is_active(self, key: BackOffKey, now: float) -> bool:
        """Return whether the last failure of a key is less than its delay ago (pulls)."""
        entry = self._entries.get(key)
        return entry is not None and self.policy.ends(entry, entry.updated, now) is not None

    def reset(self, key: BackOffKey) -> None:
        """Forget one key after a success."""
        self._entries.pop(key, None)

    def forget(self, uid: str) -> None:
        """Forget every key of a pod that is gone."""
        self._entries = {k: e for k, e in self._entries.items() if k[0] != uid}
