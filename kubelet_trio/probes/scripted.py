"""Probes and hooks of a replay: their findings are known, and nothing is asked of a container.

A finding holds until the next one of the same probe: the recorder notes one only where it differs
from the last. The ticks follow from it, since a recorded finding was one of a tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kubelet_trio.model import ContainerId, PodUid
from kubelet_trio.probes.state import Finding, ProbeKind

# Seconds in which a probe that runs may give its next finding instead of the one before.
SOON = 1.0


@dataclass(frozen=True, slots=True)
class ScriptedFinding:
    """What a probe finds of one instance from a time on (of Trio's clock).

    None: it ends without a finding.
    """

    at: float
    instance: ContainerId
    finding: Finding | None


class ContainerScript(Protocol):
    """What the containers of a node answer in a replay."""

    def findings(self, uid: PodUid, container: str, kind: ProbeKind) -> Sequence[ScriptedFinding]:
        """Return the findings of one probe, oldest first."""
        ...

    async def http_hook(self, container_id: ContainerId, *, is_pre_stop: bool) -> None:
        """Return when an HTTP hook of a container has ended."""
        ...


@dataclass(slots=True)
class ScriptReader:
    """Reads the findings of one probe in time: pure. `tick` is when the probe runs next."""

    findings: Sequence[ScriptedFinding]
    tick: float
    taken: int = 0  # so many have come

    @property
    def next_at(self) -> float:
        """When something is to be counted next, if nobody kicks the probe."""
        return min(self.tick, self._following())

    def take(self, now: float, period: float, *, is_kicked: bool) -> ScriptedFinding | None:
        """Return the finding to count now, if there is one."""
        before = self.taken
        while self._following() <= now:
            self.taken += 1
        is_due = now >= self.tick
        if self.taken > before:
            self.tick = now + period
        elif self._following() - now < SOON:
            self.tick = self._following()
            return None
        elif is_due:
            self.tick = max(self.tick + period, now)
        elif is_kicked:
            self.tick = now + period
        else:
            return None
        return self.findings[self.taken - 1] if self.taken else None

    def _following(self) -> float:
        left = self.taken < len(self.findings)
        return self.findings[self.taken].at if left else float("inf")
