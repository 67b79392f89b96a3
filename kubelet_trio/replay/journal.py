"""What the replayed agent decides, in order, and the first decision that differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from kubelet_trio.replay.types import Decision, Divergence


@dataclass(slots=True, eq=False)
class Journal:
    """Collects decisions; `diverged` is set with the first divergence.

    Attributes:
        wall: returns the Unix time of a virtual one.
        pod: `namespace/name` of the only pod that counts; "": all.
        on_decision: called with each decision, for those who print them as they come.
        why: returns the reasons that hold a pod up now, a line each.
        names: of pods, by UID.
        suspected: what will be a divergence unless the agent gives it up, as arguments of
            `diverge`: it goes before any other.
    """

    wall: Callable[[float], float]
    pod: str = ""
    on_decision: Callable[[Decision], None] = lambda _decision: None
    why: Callable[[str], Sequence[str]] = lambda _uid: ()
    names: dict[str, str] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    divergence: Divergence | None = None
    diverged: trio.Event = field(default_factory=trio.Event)
    suspected: dict[int, tuple[float, str, str, str]] = field(default_factory=dict)
    _is_open: bool = True

    def open(self) -> None:
        """Begin with another agent."""
        self._is_open = True

    def close(self) -> None:
        """Take no more: what an agent does that is ended here is no decision."""
        self._is_open = False

    def name(self, uid: str) -> str:
        """Return the name of a pod, its UID if that is not known."""
        return self.names.get(uid, uid)

    def note(self, uid: str, kind: str, text: str) -> None:
        """Add a decision that is made now."""
        name = self.names.get(uid, "")
        if not self._is_open or (uid and self.pod and name != self.pod):
            return
        decision = Decision(self.wall(trio.current_time()), uid, name, kind, text)
        self.decisions.append(decision)
        self.on_decision(decision)

    def diverge(self, at: float, uid: str, recorded: str, decided: str) -> None:
        """Note a divergence from what was decided at a virtual time; only the first counts."""
        earlier = [each for each in self.suspected.values() if each[1] == uid and each[0] <= at]
        at, uid, recorded, decided = min([*earlier, (at, uid, recorded, decided)])
        name = self.name(uid)
        is_other = bool(self.pod) and name != self.pod
        if self.divergence is not None or is_other or not self._is_open:
            return
        why = tuple(self.why(uid)) if uid else ()
        self.divergence = Divergence(self.wall(at), uid, name, recorded, decided, why)
        self.diverged.set()
