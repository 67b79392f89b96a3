"""A pod's turn at its name: the name is free, and nothing of another UID runs under it."""

from __future__ import annotations

from dataclasses import dataclass

from kubelet_trio.model import PodKey, PodUid, get_logger
from kubelet_trio.pods.services import PodServices

log = get_logger()


@dataclass(slots=True)
class NameTurn:
    """What one pod asks of the names on the node. Its worker's."""

    services: PodServices
    key: PodKey
    uid: PodUid
    # Others of its name of which something runs, left of an earlier life of the agent.
    waits_for: frozenset[PodUid] = frozenset()

    @property
    def has_come(self) -> bool:
        """Whether the name is this pod's now."""
        return self.services.names.is_holder(self.key, self.uid)

    async def wait(self) -> None:
        """Wait until it is."""
        await self.services.names.wait_turn(self.key, self.uid)

    def is_free(self) -> bool:
        """Whether nothing else runs under the name, so that a sandbox may be made.

        A pod that runs and is wanted by another source, or is being ended, has the name first.
        """
        names, before = self.services.names, self.waits_for
        self.waits_for = self.services.observer.namesakes(self.key, self.uid)
        for other in sorted(self.waits_for):
            names.let_pass(self.key, self.uid, other)
        if self.waits_for - before:
            why = "a pod of the same name runs"
            log.info("pod.waiting_for_name", reason=why, others=sorted(self.waits_for))
        return not self.waits_for and self.has_come

    def release(self) -> None:
        """Leave the name to the next that waits for it."""
        self.services.names.release(self.key, self.uid)
