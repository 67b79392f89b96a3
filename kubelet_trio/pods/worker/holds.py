"""What a pod may have to wait for: a retry, a pod of the same name, the runtime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    Backoff,
    PodKey,
    PodUid,
    fnv1a_32,
    get_logger,
    pod_object_ref,
    spec,
)
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.executor import FailedStarts
from kubelet_trio.pods.types import Hold, WaitingReason

log = get_logger()

# Retries of a step that failed: quick at first, upstream's 10 s at the most.
RETRY_BASE = 1.0
RETRY_CAP = 10.0
JITTER = 0.5  # the largest share of a delay that is added to it
# The longest that a container may be held back: above the 300 s of the image pull back-off.
_HOLD_MAX = 330.0
_POD = ""


class Holds:
    """The waits of one pod after failures: for starts of single containers, or for all steps.

    Each failure makes the next wait longer. A success, or `clear`, resets that.
    """

    def __init__(self, uid: PodUid) -> None:
        self._uid = uid
        self.pod_until = 0.0  # trio time: a step for the whole pod failed
        self.resize_until = 0.0  # trio time: its resize failed
        self._pod_failed = 0.0, WaitingReason("")  # trio time of the failure, and what failed
        self._holds: dict[str, Hold] = {}  # containers that failed to start
        self._backoffs: dict[str, Backoff] = {}  # by container, "" for the pod

    def clear(self) -> None:
        """End all waits."""
        self._holds.clear()
        self._backoffs.clear()
        self.pod_until = self.resize_until = 0.0

    def hold_resize(self) -> None:
        """Hold back a resize that failed: it may take long until it can succeed."""
        self.resize_until = trio.current_time() + jittered(RETRY_CAP, self._uid)

    def hold_pod(self, failed: WaitingReason) -> None:
        """Hold back the whole pod: a step for it failed."""
        self._pod_failed = trio.current_time(), failed
        self.pod_until = trio.current_time() + self._next_delay(_POD)

    def pod(self, now: float) -> Hold | None:
        """Return what holds back the whole pod, if something does; `now` is Unix seconds."""
        ahead = self.pod_until - trio.current_time()
        since, failed = self._pod_failed
        behind = trio.current_time() - since
        return Hold(now + ahead, failed, now - behind) if ahead > 0 else None

    def note(self, tried: Iterable[str], failed: FailedStarts, now: float) -> None:
        """Hold back the containers that failed to start; release the others that were tried.

        `now` is Unix seconds, as the holds of containers are.
        """
        self._backoffs.pop(_POD, None)
        for name in tried:
            self._holds.pop(name, None)
            if name not in failed:
                self._backoffs.pop(name, None)
        for name, error in failed.items():
            until = error.retry_at or now + self._next_delay(name)
            self._holds[name] = Hold(until, error.waiting, now)

    def containers(self, now: float) -> dict[str, Hold]:
        """Return which containers are held back, by name."""
        # A longer one means that the wall clock was set back: it would last for as long as that.
        return {n: h for n, h in self._holds.items() if h.until - now <= _HOLD_MAX}

    def _next_delay(self, name: str) -> float:
        if name not in self._backoffs:
            share = partial(_share, self._uid, name)
            self._backoffs[name] = Backoff(RETRY_BASE, RETRY_CAP, jitter=JITTER, rand=share)
        return self._backoffs[name].next_delay()


def jittered(seconds: float, uid: PodUid) -> float:
    """Lengthen a pod's delay, so that many workers do not act at the same moment."""
    return seconds * (1.0 + JITTER * _share(uid, _POD))


def _share(uid: PodUid, name: str) -> float:
    """Return a number from 0 to 1 that differs from container to container.

    It is not drawn at random: a replay of what the agent has decided must wait as long.
    """
    return fnv1a_32(f"{uid}/{name}".encode()) / 2**32


@dataclass(slots=True)
class NameTurn:
    """One pod's claim to its name: only one pod of a name may run on the node at a time."""

    services: PodServices
    key: PodKey
    uid: PodUid
    # Others of its name that an earlier agent left running.
    waits_for: frozenset[PodUid] = frozenset()

    @property
    def is_holder(self) -> bool:
        """Whether this pod holds the name now."""
        return self.services.names.is_holder(self.key, self.uid)

    async def wait(self) -> None:
        """Wait until this pod holds the name."""
        await self.services.names.wait_turn(self.key, self.uid)

    def is_free(self) -> bool:
        """Whether no other pod of the name runs, so that a sandbox may be created.

        A pod that runs, for another source or because it is still terminating, gets the name first.
        """
        names, before = self.services.names, self.waits_for
        self.waits_for = self.services.observer.namesakes(self.key, self.uid)
        names.note_waits(self.uid, self.waits_for)
        for other in sorted(self.waits_for):
            names.let_pass(self.key, self.uid, other)
        if self.waits_for - before:
            why = "a pod of the same name runs"
            log.info("pod.waiting_for_name", reason=why, others=sorted(self.waits_for))
        return not self.waits_for and self.is_holder

    def release(self) -> None:
        """Release the name for the next pod that waits for it."""
        self.services.names.release(self.key, self.uid)
        self.services.names.note_waits(self.uid, frozenset())


def is_paused(services: PodServices, pod: Pod) -> bool:
    """Return whether a pod must wait for the runtime or its network; emit an event for the latter.

    A teardown is not paused: the runtime may recover because containers are stopped.
    """
    # As runtimeErrors and networkErrors of the Go kubelet's runtime.go stop its sync loop.
    state = services.runtime_state.value
    if not state.is_usable or services.observer.problem(trio.current_time()) is not None:
        return True
    if state.network_problem and spec(pod).hostNetwork is not True:
        text = f"network is not ready: {state.network_problem}"
        services.events.emit(pod_object_ref(pod), "Warning", "NetworkNotReady", text)
        return True
    return False
