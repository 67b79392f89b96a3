"""What a replay says: decisions, one a line, and where they differ from the recorded ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that the replayed agent has decided.

    Attributes:
        at: Unix seconds.
        uid: of its pod; "" for the node.
        pod: `namespace/name`, as far as it is known.
        kind: `call` (a changing call of the runtime), `answer` (its failure), `status`, `why` (a
            reason that holds the pod up), `wanted` (an input: a source wants the pod, or not any
            more), `asked` (an input: a request of a user), `evict` (an eviction), `node` (its
            shortages and shutdowns), `note` (what is not replayed) or `agent` (it starts or ends).
        text: one line.
    """

    at: float
    uid: str
    pod: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the agent decides otherwise than it did. Times are Unix seconds.

    Attributes:
        at: when the recorded agent decided, or did not.
        uid: of the pod; "" for the node.
        pod: `namespace/name`.
        recorded: what it decided when it was recorded.
        decided: what it decides now.
        why: the reasons that hold the pod up now, a line each.
    """

    at: float
    uid: str
    pod: str
    recorded: str
    decided: str
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        who = self.pod or "the node"
        return f"{who}: recorded: {self.recorded}; decided now: {self.decided}"


class ReplayDivergedError(AssertionError):
    """The agent decides otherwise than it did when it was recorded."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence


@dataclass(frozen=True, slots=True)
class Replay:
    """A recording that was replayed.

    Attributes:
        name: of the recording.
        began: of the recording, Unix seconds; `ended`: as far as it was replayed.
        starts: how often an agent started in it.
        decisions: what was decided, in order.
        divergence: the first one; None: the agent decided as it did.
        notes: what the replay could not know, a line each.
    """

    name: str
    began: float
    ended: float
    starts: int
    decisions: Sequence[Decision]
    divergence: Divergence | None = None
    notes: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise `ReplayDivergedError` if the agent decided otherwise than it did."""
        if self.divergence is not None:
            raise ReplayDivergedError(self.divergence)
