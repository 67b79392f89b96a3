"""Dead containers and sandboxes that the runtime fails to remove: tried again and again.

Only what runs may hold up a later pod. A runtime that goes on listing a dead sandbox and fails to
remove it (containerd 1.6, if its containers were removed behind CRI's back) must keep neither the
pod's worker nor its name. So the worker leaves such remains here: a task for each pod, named like
its worker, with a back-off of its own. The task ends when all is removed, when the pod has a worker
again, or with the agent. The next agent finds the dead sandbox in the runtime and does the same.
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

    Goes on with the others if one cannot be removed. `stopped` are sandboxes that were stopped
    just now. Returns what went wrong, "" if nothing did. Raises `RuntimeUnavailableError` if the
    runtime is away.
    """
    # Removing a sandbox removes its containers; those whose sandbox is gone are removed here.
    known = {sandbox.id for sandbox in observed.sandboxes}
    steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        (f"container {c.name}", partial(runtime.remove_container, c.id))
        for c in observed.containers
        if c.sandbox_id not in known
    ]
    for sandbox in observed.sandboxes:
        if sandbox.id not in stopped:
            # Also one that has stopped: that frees what an unclean end has left of its network.
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
    """The remains on this node. `tasks` runs in the agent's tree; the methods never block."""

    def __init__(
        self, runtime: Runtime, refresh: Callable[[PodUid], Awaitable[RuntimePod]]
    ) -> None:
        """Take the seams; `refresh` asks the runtime what it holds of a pod now."""
        self.tasks = DynamicSupervisor("remains")
        self._runtime = runtime
        self._refresh = refresh
        self._left: dict[PodUid, tuple[PodKey, str]] = {}  # with what went wrong last

    def leave(self, key: PodKey, uid: PodUid, trouble: str) -> None:
        """Remove what is left of a pod of which nothing runs; `trouble` is why it is left."""
        if uid not in self._left:
            self._left[uid] = key, ""
            name = f"{key}@{uid}"
            run = partial(self._remove, key, uid)
            self.tasks.start_child(ChildSpec(name, run, Restart.TRANSIENT))
        self._note(key, uid, trouble)

    def take_back(self, uid: PodUid) -> None:
        """Leave a pod to its worker: it is wanted again, or something of it runs."""
        key, _ = self._left.pop(uid, (None, ""))
        if key is not None:
            self.tasks.stop_child(f"{key}@{uid}")

    def is_left(self, uid: PodUid) -> bool:
        """Whether the remains of a pod are being removed here."""
        return uid in self._left

    def problems(self) -> Mapping[str, str]:
        """Return why remains cannot be removed, by pod."""
        return {f"{key}@{uid}": text for uid, (key, text) in sorted(self._left.items())}

    def _note(self, key: PodKey, uid: PodUid, trouble: str) -> None:
        if trouble and self._left[uid][1] != trouble:
            log.warning("pod.remains", pod=str(key), podUID=uid, error=trouble)
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
                observed = await self._refresh(uid)
                if not is_at_rest(observed):
                    break  # something of it runs: the registry ends that as an orphan
                trouble = await remove_dead(self._runtime, observed)
                observed = await self._refresh(uid)
            except RuntimeCallError as exc:
                log.info("pod.remains_unknown", pod=str(key), podUID=uid, error=str(exc))
                continue
            if not observed.exists:
                log.info("pod.remains_removed", pod=str(key), podUID=uid)
                break
            self._note(key, uid, trouble or "the runtime still lists what it has removed")
        self._left.pop(uid, None)
