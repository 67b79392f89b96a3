"""Starting the next instance of a container: its number, its back-off, what holds it back.

Source: the Go kubelet's doBackOff, its restart count, and its texts.
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
    pod_containers,
    pod_key,
    pod_uid,
)
from kubelet_trio.pods.plan.backoff import BackOffPolicy
from kubelet_trio.pods.plan.restart_all import RestartBackOffs
from kubelet_trio.pods.types import (
    CRASH_LOOP,
    BackOffEntry,
    BackOffKey,
    Hold,
    StartContainer,
    WaitingReason,
)


def crash_key(pod: Pod, name: str, hashes: Mapping[str, int]) -> BackOffKey:
    """Return what a container's crash back-off is kept by: another definition, another key.

    So are other resources: a container that died for want of memory need not wait once it
    has more.
    """
    found = (c.spec.resources for c in pod_containers(pod) if c.spec.name == name)
    resources = next(found, None)
    amounts = json.encode(resources, order="sorted").decode() if resources is not None else ""
    return pod_uid(pod), name, f"{hashes.get(name, 0):x}", amounts


def has_changed(record: ContainerRecord, hashes: Mapping[str, int]) -> bool:
    """Return whether an instance was made from another definition than the present one.

    Without a hash on either side nothing has: an agent must not restart what it cannot judge.
    """
    wanted = hashes.get(record.name)
    return wanted is not None and bool(record.hash) and record.hash != f"{wanted:x}"


@dataclass(frozen=True, slots=True)
class Starts:
    """The inputs of `plan_pod` that decide when and as what a container starts."""

    pod: Pod
    observed: RuntimePod
    now: float
    crash: Mapping[BackOffKey, BackOffEntry]
    policy: BackOffPolicy
    hashes: Mapping[str, int]
    pull: Mapping[str, Hold]
    min_attempts: Mapping[str, int]

    def has_changed(self, record: ContainerRecord) -> bool:
        return has_changed(record, self.hashes)

    def hold(self, container: PodContainer, sandbox: SandboxRecord | None) -> Hold | None:
        """Return what keeps a container from starting now: crashes, then its image."""
        name = container.spec.name
        last = self._last_crash(name)
        wait = self._wait(last, sandbox) if last is not None else None
        if last is None and container.kind is not ContainerKind.EPHEMERAL:
            wait = RestartBackOffs(self.crash, self.policy).hold(self.pod, self.now)
        if wait is not None:
            return wait
        held = self.pull.get(name)
        return held if held is not None and held.until > self.now else None

    def start(self, container: PodContainer, sandbox: SandboxRecord | None) -> StartContainer:
        """Return the start of the next instance, with the back-off entry it leaves."""
        name = container.spec.name
        used = [c.attempt + 1 for c in self.observed.of(name)]
        attempt = max(0, self.min_attempts.get(name, 0), *used)
        last = self._last_crash(name)
        if last is None or self._is_spared(last):
            return StartContainer(container, attempt)
        entry = self.policy.next(self._entry(last, sandbox), last.finished_at, self.now)
        return StartContainer(
            container, attempt, back_off=(crash_key(self.pod, name, self.hashes), entry)
        )

    def _last_crash(self, name: str) -> ContainerRecord | None:
        """Return the newest ended instance of the present definition, if there is one.

        Where one runs and is to be replaced since a probe failed, that is the one before:
        else a container that never gets well would be restarted without any pause.
        """
        ended = (c for c in self.observed.of(name) if c.state is ContainerState.EXITED)
        last = next(ended, None)
        return last if last is not None and not self.has_changed(last) else None

    def _entry(self, last: ContainerRecord, sandbox: SandboxRecord | None) -> BackOffEntry | None:
        """Return the entry that is remembered, or else the one that the records tell of."""
        key = crash_key(self.pod, last.name, self.hashes)
        if key in self.crash:
            return self.crash[key]
        if any(known[:2] == key[:2] for known in self.crash):
            return None  # it crashed as another definition: it begins anew
        # A container that went down with its sandbox (a reboot) did not crash.
        if sandbox is None or last.sandbox_id != sandbox.id:
            return None
        restarts = last.attempt
        before = next((c for c in self.observed.of(last.name) if c.attempt < last.attempt), None)
        if before is not None:
            if self.has_changed(before) or before.sandbox_id != last.sandbox_id:
                restarts = 0  # the last one was the first of its kind
            elif before.finished_at - before.created_at > self.policy.reset_after:
                restarts = 1  # the one before ran for long: the row began with the last
        return self.policy.seeded(restarts, last.created_at)

    def _is_spared(self, last: ContainerRecord) -> bool:
        return self.policy.spare_clean_exits and last.exit_code == 0

    def _wait(self, last: ContainerRecord, sandbox: SandboxRecord | None) -> Hold | None:
        """Return the back-off after this end, None if there is none or it is over."""
        if self._is_spared(last):
            # At most one start a base period: a spared container must not spin.
            delay, end = self.policy.base, last.created_at + self.policy.base
            is_held = self.now < end <= self.now + delay
            return Hold(end, self._crash_loop(last.name, delay)) if is_held else None
        entry = self._entry(last, sandbox)
        ends = self.policy.ends(entry, last.finished_at, self.now)
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
