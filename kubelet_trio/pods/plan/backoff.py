"""Back-off: how long a failing container, or a failing pull, waits for its next try.

The policy is pure arithmetic on entries; `BackOff` is the dict of them, with one owner and
no clock of its own. Semantics of the Go kubelet's: an entry appears with the first restart
(which comes at once), its delay counts from the container's end, doubles with each
restart up to the cap, and starts over once the container has gone `reset_after` s
without one. Keys carry the container's hash, so a changed definition starts afresh.

What the Go kubelet forgets when it restarts can be told again from the runtime: `seeded`
makes the entry that `attempt` restarts in a row would have left. Without it, restarting or
upgrading the agent would restart every crash-looping container of the node at the same
moment, and a container in its fifth minute of waiting would start over at 10 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kubelet_trio.model import backoff_delay
from kubelet_trio.pods.types import BackOffEntry, BackOffKey


@dataclass(frozen=True, slots=True)
class BackOffPolicy:
    """How a back-off grows. All in seconds.

    A cap below the base lowers the base too (as `crashLoopBackOff.maxContainerRestartPeriod`
    does upstream). `reset_after` is 600 s at least and never below twice the cap.
    """

    base: float = 10.0
    cap: float = 300.0
    reset_after: float = 600.0
    spare_clean_exits: bool = False  # exit code 0 never grows a back-off (node setting)
    seed: bool = True  # tell a back-off again from restart counts, see `seeded`

    def __post_init__(self) -> None:
        if self.base <= 0 or self.cap <= 0:
            raise ValueError("a back-off needs a base and a cap above 0")
        object.__setattr__(self, "base", min(self.base, self.cap))
        object.__setattr__(self, "reset_after", max(self.reset_after, 2 * self.cap))

    def next(self, entry: BackOffEntry | None, since: float, now: float) -> BackOffEntry:
        """Return the entry after one more try now, of what failed at `since` (Unix seconds)."""
        if entry is None or self.has_expired(entry, since):
            return BackOffEntry(self.base, now)
        return BackOffEntry(min(entry.delay * 2, self.cap), now)

    def ends(self, entry: BackOffEntry | None, since: float, now: float) -> float | None:
        """Return when a back-off counted from `since` ends, None if nothing is held back.

        A `since` further ahead than the cap means that the wall clock was set back, and
        holds nothing: the wait would otherwise last until the clock caught up.
        """
        if entry is None or self.has_expired(entry, since) or since - now > self.cap:
            return None
        end = since + entry.delay
        return end if now < end else None

    def has_expired(self, entry: BackOffEntry, since: float) -> bool:
        """Return whether what failed at `since` had gone well for long enough to start over."""
        return since - entry.updated > self.reset_after

    def seeded(self, restarts: int, started: float) -> BackOffEntry | None:
        """Return the entry that `restarts` in a row left, the last made at `started`."""
        if restarts < 1 or not self.seed:
            return None
        return BackOffEntry(backoff_delay(self.base, self.cap, restarts), started)


class BackOff(Mapping[BackOffKey, BackOffEntry]):
    """The back-offs of a node, or of one kind of thing on it. One owner; read as a mapping."""

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
        """Move one key on, for a failure at `since` (now, if not given)."""
        entry = self.policy.next(self._entries.get(key), now if since is None else since, now)
        self._entries[key] = replace(entry, note=note)
        return self._entries[key]

    def is_active(self, key: BackOffKey, now: float) -> bool:
        """Return whether the last failure of a key is less than its delay ago (pulls)."""
        entry = self._entries.get(key)
        return entry is not None and self.is_in_back_off_since(key, entry.updated, now)

    def is_in_back_off_since(self, key: BackOffKey, since: float, now: float) -> bool:
        """Return whether a failure at `since` still holds the key back (crashes)."""
        return self.policy.ends(self._entries.get(key), since, now) is not None

    def note(self, key: BackOffKey) -> str:
        """Return what failed last under a key, "" if nothing is known."""
        entry = self._entries.get(key)
        return entry.note if entry is not None else ""

    def reset(self, key: BackOffKey) -> None:
        """Forget one key: it went well."""
        self._entries.pop(key, None)

    def forget(self, uid: str) -> None:
        """Forget every key of a pod that is gone."""
        self._entries = {k: e for k, e in self._entries.items() if k[0] != uid}

    def gc(self, now: float) -> None:
        """Drop entries so old that the next failure would start over anyway."""
        kept = {k: e for k, e in self._entries.items() if not self.policy.has_expired(e, now)}
        self._entries = kept
