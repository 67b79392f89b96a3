"""Names of pods: one pod at a time holds a full name, the next UID of that name waits for it.

An edited static pod is a new UID under the old name. It starts once the old one is gone entirely,
so that two never share a log directory name, a host port or a hostname.
"""

from __future__ import annotations

from kubelet_trio.model import LateEvent, PodKey, PodUid


class PodNames:
    """The holder of each name and the pods that wait for it, first come first served."""

    def __init__(self) -> None:
        self._queues: dict[PodKey, dict[PodUid, LateEvent]] = {}
        # Who waits for pods of the name that an earlier agent left running; nobody, as a rule.
        self._waits: dict[PodUid, frozenset[PodUid]] = {}

    def note_waits(self, uid: PodUid, others: frozenset[PodUid]) -> None:
        """Note the running pods that a pod waits for before its first sandbox."""
        if others:
            self._waits[uid] = others
        else:
            self._waits.pop(uid, None)

    def waiting(self, other: PodUid | None = None) -> list[PodUid]:
        """Return the pods that wait for running ones, or for this one."""
        return [uid for uid, others in self._waits.items() if other is None or other in others]

    def claim(self, key: PodKey, uid: PodUid) -> None:
        """Join the queue for a name; claiming twice changes nothing."""
        queue = self._queues.setdefault(key, {})
        turn = queue.setdefault(uid, LateEvent())
        if next(iter(queue)) == uid:
            turn.set()

    async def wait_turn(self, key: PodKey, uid: PodUid) -> None:
        """Wait until the name is this UID's; it must have claimed it."""
        await self._queues[key][uid].wait()

    def is_holder(self, key: PodKey, uid: PodUid) -> bool:
        """Whether the name is this UID's now."""
        queue = self._queues.get(key, {})
        return uid in queue and queue[uid].is_set()

    def holder(self, key: PodKey) -> PodUid | None:
        """Return the UID that has the name now; None if nobody has."""
        return next(iter(self._queues.get(key, ())), None)

    def let_pass(self, key: PodKey, uid: PodUid, other: PodUid) -> None:
        """Give the name, if this UID holds it, to another that waits, and wait as the next."""
        queue = self._queues.get(key, {})
        if other == uid or other not in queue or not self.is_holder(key, uid):
            return
        passed = queue.pop(other)
        passed.set()
        queue[uid] = LateEvent()
        self._queues[key] = {other: passed, **queue}

    def release(self, key: PodKey, uid: PodUid) -> None:
        """Leave the queue and let the next in."""
        queue = self._queues.get(key, {})
        queue.pop(uid, None)
        if queue:
            next(iter(queue.values())).set()
        else:
            self._queues.pop(key, None)
