"""What is dead of pods that are gone and cannot be removed: tried again beside, for ever.

Only what runs may hold up what comes. A runtime that goes on listing a dead sandbox and fails
to remove it (containerd 1.6, whose containers were removed behind CRI's back) must keep neither
the pod's worker nor its name. So a worker whose pod has gone but for that leaves it here: a
task for each pod, named like its worker's, with a back-off of its own. It ends when all is
gone, when the pod comes back and has a worker again, or with the agent; the next agent finds
the dead sandbox in the runtime and comes to the same end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

import trio

from kubelet_trio.cri import Runtime, RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.model import Backoff, PodKey, PodUid, RuntimePod, SandboxId, get_logger
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor, Restart

log = get_logger()

_FIRST, _CAP = 1.0, 60.0  # seconds between tries


def is_at_rest(observed: RuntimePod) -> bool:
    """Return whether nothing of a pod runs, nor may."""
    return not any(observed.running()) and not any(s.ready for s in observed.sandboxes)


async def remove_dead(
    runtime: Runtime, observed: RuntimePod, stopped: Collection[SandboxId] = ()
) -> str:
    """Try to remove all that the runtime holds of a pod that has stopped.

    Each by itself: one that cannot be removed keeps no other. `stopped` are sandboxes that were
    stopped just now. Returns what went wrong, "" if nothing did. Raises
    `RuntimeUnavailableError` where nobody can be asked.
    """
    # A sandbox takes its containers along; what outlived its sandbox goes by itself.
    known = {sandbox.id for sandbox in observed.sandboxes}
    steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        (f"container {c.name}", partial(runtime.remove_container, c.id))
        for c in observed.containers
        if c.sandbox_id not in known
    ]
    for sandbox in observed.sandboxes:
        if sandbox.id not in stopped:
            # Stopping one that was stopped frees what an unclean end has left of its network.
            steps.append((f"sandbox {sandbox.id}", partial(runtime.stop_pod_sandbox, sandbox.id)))
        steps.append((f"sandbox {sandbox.id}", partial(runtime.remove_pod_sandbox, sandbox.id)))
    problems: dict[str, RuntimeCallError] = {}
    for what, step in steps:
        try:
            await step()
        except RuntimeUnavailableError:
            raise
        except RuntimeCallError as exc:
            problems[what] = exc
    return "; ".join(f"{what}: {exc}" for what, exc in problems.items())


class Remains:
    """The remains on this node. `tasks` runs in the agent's tree; the other methods never block."""

    def __init__(self, runtime: Runtime, look: Callable[[PodUid], Awaitable[RuntimePod]]) -> None:
        """Take the seams; `look` asks the runtime anew what it holds of a pod."""
        self.tasks = DynamicSupervisor("remains")
        self._runtime = runtime
        self._look = look
        self._left: dict[PodUid, tuple[PodKey, str]] = {}  # and what went wrong last

    def leave(self, key: PodKey, uid: PodUid, trouble: str) -> None:
        """Take over what is left of a pod of which nothing runs; `trouble` is why it is."""
        if uid not in self._left:
            self._left[uid] = key, ""
            name = f"{key}@{uid}"
            run = partial(self._remove, key, uid)
            self.tasks.start_child(ChildSpec(name, run, Restart.TRANSIENT))
        self._note(key, uid, trouble)

    def take_back(self, uid: PodUid) -> None:
        """Leave a pod to its worker: it is there again, or something of it runs."""
        key, _ = self._left.pop(uid, (None, ""))
        if key is not None:
            self.tasks.stop_child(f"{key}@{uid}")

    def is_left(self, uid: PodUid) -> bool:
        """Whether all that there is of a pod is being removed here."""
        return uid in self._left

    def problems(self) -> Mapping[str, str]:
        """Return what cannot be removed, by pod, and why."""
        return {f"{key}@{uid}": text for uid, (key, text) in sorted(self._left.items())}

    def _note(self, key: PodKey, uid: PodUid, trouble: str) -> None:
        if trouble and self._left[uid][1] != trouble:
            log.warning("pod.remains", pod=str(key), uid=uid, error=trouble)
        self._left[uid] = key, trouble

    async def _remove(
        self,
        key: PodKey,
        uid: PodUid,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        backoff = Backoff(_FIRST, _CAP)
        while uid in self._left:
            await trio.sleep(backoff.next_delay())
            try:
                observed = await self._look(uid)
                if not is_at_rest(observed):
                    break  # the registry ends what runs
                trouble = await remove_dead(self._runtime, observed)
                observed = await self._look(uid)
            except RuntimeCallError as exc:
                log.info("pod.remains_unknown", pod=str(key), uid=uid, error=str(exc))
                continue
            if not observed.exists:
                log.info("pod.remains_removed", pod=str(key), uid=uid)
                break
            self._note(key, uid, trouble or "the runtime still lists what it has removed")
        self._left.pop(uid, None)
