"""Start the next instance of a container: its restart count, its back-off, what holds it back.

Upstream: doBackOff and the restart count of startContainer, with their texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod
from msgspec import json

from kubelet_trio.durations import format_milliseconds
from kubelet_trio.model import (
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    RuntimePod,
    SandboxRecord,
    full_name,
    pod_containers,
    pod_key,
    pod_uid,
)
from kubelet_trio.pods.plan.backoff import BackOffEntry, BackOffKey
from kubelet_trio.pods.plan.pod_plan import PlanInput, StartContainer
from kubelet_trio.pods.plan.restarts import CRASH_LOOP, restart_all_hold
from kubelet_trio.pods.types import Hold, WaitingReason


def crash_key(pod: Pod, name: str, hashes: Mapping[str, int]) -> BackOffKey:
    """Return the key of a container's crash back-off; a changed definition has another key."""
    found = (c.spec.resources for c in pod_containers(pod) if c.spec.name == name)
    resources = next(found, None)
    # The hash leaves resources out. A container that ran out of memory need not wait once its
    # limit is higher.
    amounts = json.encode(resources, order="sorted").decode() if resources is not None else ""
    return pod_uid(pod), name, f"{hashes.get(name, 0):x}", amounts


def has_changed(record: ContainerRecord, given: PlanInput) -> bool:
    """Return whether an instance was created from another definition than the current one."""
    wanted = given.hashes.get(record.name)
    # A hash that is missing counts as unchanged: an unknown definition must not cause a restart.
    if wanted is None or not record.hash or record.hash == f"{wanted:x}":
        return False
    # The Go kubelet before 1.31 hashed the whole container. Of what the hash covers since, only
    # the image can have changed, and the runtime knows that.
    image = given.images.get(record.name, "")
    return not record.image or not image or full_name(record.image) != full_name(image)


@dataclass(frozen=True, slots=True)
class Starts:
    """When the containers of one pod start, and as which instance."""

    pod: Pod
    observed: RuntimePod
    given: PlanInput

    def hold(self, container: PodContainer, sandbox: SandboxRecord | None) -> Hold | None:
        """Return the back-off that delays a container's start: of its crashes, or of its image."""
        name = container.spec.name
        last = self._last_crash(name)
        wait = self._crash_hold(last, sandbox) if last is not None else None
        if last is None and container.kind is not ContainerKind.EPHEMERAL:
            wait = restart_all_hold(self.pod, self.given)
        if wait is not None:
            return wait
        held = self.given.pull.get(name)
        return held if held is not None and held.until > self.given.now else None

    def start(self, container: PodContainer, sandbox: SandboxRecord | None) -> StartContainer:
        """Return the start of the next instance, with the back-off entry to keep after it."""
        name = container.spec.name
        attempt = max((c.attempt + 1 for c in self.observed.of(name)), default=0)
        last = self._last_crash(name)
        if last is None or self._is_spared(last):
            return StartContainer(container, attempt, unrecorded=self.observed.latest(name) is None)
        entry = self.given.policy.next(self._entry(last, sandbox), last.finished_at, self.given.now)
        return StartContainer(
            container, attempt, back_off=(crash_key(self.pod, name, self.given.hashes), entry)
        )

    def _last_crash(self, name: str) -> ContainerRecord | None:
        """Return the newest ended instance, if it has the current definition."""
        newest = self.observed.latest(name)
        if newest is not None and newest.id in self.given.asked:
            return None
        # If a failed probe restarts an instance that still runs, this is the one before it. Without
        # it a container that never becomes healthy would restart without a pause.
        ended = (c for c in self.observed.of(name) if c.state is ContainerState.EXITED)
        last = next(ended, None)
        return last if last is not None and not has_changed(last, self.given) else None

    def _entry(self, last: ContainerRecord, sandbox: SandboxRecord | None) -> BackOffEntry | None:
        """Return the back-off entry of a crash: the kept one, or one computed from the records."""
        key = crash_key(self.pod, last.name, self.given.hashes)
        if key in self.given.crash:
            return self.given.crash[key]
        if any(known[:2] == key[:2] for known in self.given.crash):
            return None  # it crashed with another definition: the back-off starts over
        # A container that went down with its sandbox (a reboot) did not crash.
        if sandbox is None or last.sandbox_id != sandbox.id:
            return None
        restarts = last.attempt
        before = next((c for c in self.observed.of(last.name) if c.attempt < last.attempt), None)
        if before is not None:
            changed = has_changed(before, self.given)
            if changed or before.sandbox_id != last.sandbox_id:
                restarts = 0  # the last instance was the first of its definition or sandbox
            elif before.finished_at - before.created_at > self.given.policy.reset_after:
                restarts = 1  # the one before ran long enough to reset the back-off
        return self.given.policy.seeded(restarts, last.created_at)

    def _is_spared(self, last: ContainerRecord) -> bool:
        return self.given.policy.spare_clean_exits and last.exit_code == 0

    def _crash_hold(self, last: ContainerRecord, sandbox: SandboxRecord | None) -> Hold | None:
        """Return the back-off after this exit; None if there is none or it is over."""
        policy, now = self.given.policy, self.given.now
        if self._is_spared(last):
            # At most one start a base period: a spared container must not spin.
            end = last.created_at + policy.base
            is_held = now < end <= now + policy.base  # not after the wall clock was set back
            return Hold(end, self._crash_loop(last.name, policy.base)) if is_held else None
        entry = self._entry(last, sandbox)
        ends = policy.ends(entry, last.finished_at, now)
        if entry is None or ends is None:
            return None
        return Hold(ends, self._crash_loop(last.name, entry.delay))

    def _crash_loop(self, name: str, delay: float) -> WaitingReason:
        key = pod_key(self.pod)
        return WaitingReason(
            CRASH_LOOP,
            f"back-off {format_milliseconds(delay)} restarting failed container={name} "
            f"pod={key.name}_{key.namespace}({pod_uid(self.pod)})",
        )
