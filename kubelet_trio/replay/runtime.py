"""The runtime of a replay: it answers the agent's calls as the recorded one did.

A changing call is matched with the next recorded one about the same thing. It takes as long, and
has the same answer or error. A call that was not recorded, or much earlier or later, is a
divergence.
Reading calls give what the runtime had at the time (see `observed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from zlib import crc32

import trio

from kubelet_trio.cri import (
    ExecResult,
    Listing,
    RuntimeObjectNotFoundError,
    RuntimeUnavailableError,
    v1,
)
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.recorder import read_message
from kubelet_trio.replay.effects import changed_at
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.matching import (
    CPUSETS,
    FREE,
    Failures,
    Ledger,
    Owners,
    Subject,
    container_fields,
    same_detail,
    sandbox_fields,
    tolerance_of,
)
from kubelet_trio.replay.observed import ObjectHistory, Observed, state_of, with_state
from kubelet_trio.replay.places import touch_log
from kubelet_trio.replay.reads import RuntimeReads
from kubelet_trio.replay.recorded import Life, RecordedCall

# Above the largest PID of Linux: no process of this machine has one.
FIRST_PID = 1 << 23
_RUNNING = v1.ContainerState.CONTAINER_RUNNING

# Seconds that the list of a pod may take: what was recorded by then is the answer.
_LATENCY = 0.5

M = TypeVar("M")
E = TypeVar("E", v1.PodSandbox, v1.Container)


class ReplayRuntime(RuntimeReads):
    """A `cri.Runtime` of one recorded life. `ledger` has the calls that are left."""

    def __init__(
        self, life: Life, observed: Observed, owners: Owners, journal: Journal, tolerance: float
    ) -> None:
        """Args:
        life: the recorded agent's.
        observed: its readings.
        owners: whose its objects are.
        journal: gets the calls.
        tolerance: seconds that a call may be early or late.
        """
        self.ledger = Ledger(life.calls, owners)
        self._failures = Failures(life, owners)
        self._life = life
        self._observed = observed
        self._owners = owners
        self._journal = journal
        self._tolerance = tolerance
        self._made: dict[str, float] = {}  # when objects were made here
        self._made_from: dict[str, v1.PodSandbox | v1.Container] = {}
        self._removed: set[str] = set()
        self._touched: dict[str, float] = {}  # when a call has changed an object, as recorded
        self._closed = trio.Event()
        self._pids: dict[str, int] = {}
        self._logs: dict[str, str] = {}  # of containers made here
        self._shown: dict[str, v1.PodSandbox | v1.Container] = {}

    # Changing calls

    async def _change(self, subject: Subject, *objects: str) -> RecordedCall | None:
        """Make a changing call; return the recorded one, None for a free call without one.

        Raises the recorded `RuntimeCallError`.
        """
        now = trio.current_time()
        call = self.ledger.take(subject, now)
        if call is None and subject.method in FREE:
            await trio.lowlevel.checkpoint()
            return None
        self._journal.note(subject.owner.uid, "call", subject.words)
        if call is None:
            await self._refuse(subject, now)
        assert call is not None
        allowed = tolerance_of(subject.method, self._tolerance)
        if call.began - now > allowed + self._failures.spread(subject.owner.uid, call.began):
            await self._hold(call, subject)
        self._compare(call, subject, now, allowed)
        # The recorded end, if it is near: so the two agents do not drift apart.
        spread = self._failures.spread(subject.owner.uid, call.began)
        is_near = -spread <= now - call.began + self._tolerance <= 2 * self._tolerance
        await self._wait(call.ended if is_near else now + call.ended - call.began, subject)
        for each in objects:
            changed = changed_at(call, each, self._observed)
            self._touched[each] = max(changed, self._touched.get(each, -math.inf))
        if call.error is not None:
            self._journal.note(subject.owner.uid, "answer", f"failed: {call.error}")
            raise call.error
        return call

    async def _refuse(self, subject: Subject, now: float) -> None:
        """Diverge by a call that was not recorded, and hang.

        Just before the end of the recording it does not diverge: the recorded agent, whose steps
        take time, may have made the call when nothing was recorded any more. Neither if the agent
        gives the call up soon: the recorded one may have learned in time why.
        """
        if now <= self._life.end - tolerance_of(subject.method, self._tolerance):
            found = now, subject.owner.uid, "nothing of the kind", subject.words
            self._journal.suspected[id(subject)] = found
            try:
                await self._wait(now + self._tolerance, subject)
                self._journal.diverge(*found)
            finally:
                del self._journal.suspected[id(subject)]
        await self._wait(math.inf, subject)

    async def _hold(self, call: RecordedCall, subject: Subject) -> None:
        """Wait with a call that comes too early; one that is given up meanwhile is not made."""
        is_held = False
        try:
            await self._wait(trio.current_time() + self._tolerance, subject)
            is_held = True
        finally:
            if not is_held:
                self.ledger.give_back(call)

    async def _wait(self, until: float, subject: Subject) -> None:
        """Wait for the end of a call. Raises `RuntimeUnavailableError` at that of the replay."""
        await trio.lowlevel.checkpoint()
        with trio.move_on_at(until):
            await self._closed.wait()
            raise RuntimeUnavailableError(subject.method, "the replay ends")

    def close(self) -> None:
        """Let every call fail: the replay is over."""
        self._closed.set()

    def _compare(self, call: RecordedCall, subject: Subject, now: float, allowed: float) -> None:
        if subject.method in FREE:
            return
        recorded = self.ledger.subjects[call.number]
        uid, early = subject.owner.uid, call.began - now
        if early > allowed + self._failures.spread(uid, call.began):
            text = f"{recorded.words} {early:.1f} s later"
            self._journal.diverge(now, uid, text, subject.words)
        elif not same_detail(recorded, subject):
            self._journal.diverge(call.began, uid, recorded.words, subject.words)

    def must_be_made(self, call: RecordedCall) -> bool:
        """Whether it is a divergence if the agent does not make a recorded call."""
        return call.method not in FREE

    def check_missed(self, call: RecordedCall) -> None:
        """Diverge if a recorded call has not been made although its time is over."""
        if call.made_at is None:
            recorded = self.ledger.subjects[call.number]
            late = trio.current_time() - call.began
            self._journal.diverge(
                call.began, recorded.owner.uid, recorded.words, f"nothing within {late:.1f} s"
            )

    def _subject(self, method: str, **request: Any) -> Subject:
        return self._owners.subject(method, request)

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        subject = self._subject("run_pod_sandbox", config=sandbox_fields(config))
        call = await self._change(subject)
        assert call is not None
        sandbox_id = str(call.ok)
        self._made[sandbox_id] = trio.current_time()
        self._made_from[sandbox_id] = v1.PodSandbox(
            id=sandbox_id,
            metadata=config.metadata,
            state=v1.PodSandboxState.SANDBOX_READY,
            labels=dict(config.labels),
            annotations=dict(config.annotations),
            runtime_handler=runtime_handler,
        )
        return SandboxId(sandbox_id)

    async def stop_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        subject = self._subject("stop_pod_sandbox", pod_sandbox_id=sandbox_id)
        await self._change(subject, sandbox_id)

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        subject = self._subject("remove_pod_sandbox", pod_sandbox_id=sandbox_id)
        await self._change(subject, sandbox_id)
        self._removed.add(sandbox_id)
        owner = self._owners.of(sandbox_id)
        for container_id in self._observed.containers:
            if self._sandbox_of(container_id) == sandbox_id and owner.uid:
                self._removed.add(container_id)

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: SandboxId,
        overhead: v1.LinuxContainerResources,
        resources: v1.LinuxContainerResources,
    ) -> bool:
        subject = self._subject("update_pod_sandbox_resources", pod_sandbox_id=sandbox_id)
        call = await self._change(subject, sandbox_id)
        return call is not None and bool(call.ok)

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId:
        subject = self._subject(
            "create_container",
            pod_sandbox_id=sandbox_id,
            config=container_fields(config),
            sandbox_config=sandbox_fields(sandbox_config),
        )
        call = await self._change(subject)
        assert call is not None
        container_id = str(call.ok)
        self._made[container_id] = trio.current_time()
        if sandbox_config.log_directory and config.log_path:
            self._logs[container_id] = f"{sandbox_config.log_directory}/{config.log_path}"
        self._made_from[container_id] = v1.Container(
            id=container_id,
            pod_sandbox_id=sandbox_id,
            metadata=config.metadata,
            image=config.image,
            labels=dict(config.labels),
            annotations=dict(config.annotations),
        )
        return ContainerId(container_id)

    async def start_container(self, container_id: ContainerId) -> None:
        subject = self._subject("start_container", container_id=container_id)
        await self._change(subject, container_id)
        if path := self._logs.get(container_id):
            touch_log(Path(path))

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        subject = self._subject("stop_container", container_id=container_id, timeout=grace_period)
        await self._change(subject, container_id)

    async def remove_container(self, container_id: ContainerId) -> None:
        subject = self._subject("remove_container", container_id=container_id)
        await self._change(subject, container_id)
        self._removed.add(container_id)

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        subject = self._subject("exec_sync", container_id=container_id)
        checksum = crc32(chr(0).join(command).encode(errors="replace"))
        versions = self._observed.others.get(("exec_sync", f"{container_id}/{checksum:08x}"))
        now = trio.current_time() - self._tolerance
        ends = (r for r in (versions.readings if versions is not None else ()) if r.at >= now)
        reading = next(ends, None)
        if reading is None:  # it had not ended when its caller was cancelled
            await self._wait(math.inf, subject)
        assert reading is not None
        await self._wait(reading.at, subject)
        if reading.error is not None:
            raise reading.error
        return ExecResult(b"", b"", int(reading.ok.get("exit_code") or 0))

    async def reopen_container_log(self, container_id: ContainerId) -> None:
        await self._change(self._subject("reopen_container_log", container_id=container_id))

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        linux = {
            name: getattr(resources, name)
            for name in ("memory_limit_in_bytes", "cpu_quota", "cpu_shares", *CPUSETS)
        }
        subject = self._subject(
            "update_container_resources", container_id=container_id, linux=linux
        )
        await self._change(subject, container_id)

    async def update_runtime_config(self, pod_cidr: str) -> None:
        await self._change(self._subject("update_runtime_config"))

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        request = {"image": {"image": image.image}, "sandbox": sandbox_fields(sandbox)}
        call = await self._change(self._subject("pull_image", **request), image.image)
        assert call is not None
        return str(call.ok or image.image)

    async def remove_image(self, image: v1.ImageSpec) -> None:
        request = {"image": {"image": image.image}}
        await self._change(self._subject("remove_image", **request), image.image)

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        await self._change(self._subject("checkpoint_container", container_id=container_id))

    # Objects

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus:
        content = await self._status("pod_sandbox_status", sandbox_id)
        return read_message(v1.PodSandboxStatus, content)

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        content = await self._status("container_status", container_id)
        status = read_message(v1.ContainerStatus, content.get("status") or {})
        pid = self.pid(container_id) if verbose and status.state == _RUNNING else 0
        return status, pid

    def pid(self, container_id: str) -> int:
        """Return the PID of a container, which is of the replay's own."""
        return self._pids.setdefault(container_id, FIRST_PID + len(self._pids))

    def container_of(self, pid: int) -> str | None:
        """Return the container that has a PID."""
        return next((each for each, its in self._pids.items() if its == pid), None)

    def exit_of(self, container_id: str) -> float:
        """Return when a container's process ends: as its pidfd, or else its status, has told."""
        told = self._life.exits.get(container_id)
        return told if told is not None else self._observed.exit_of(container_id)

    async def _status(self, method: str, object_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        if (away := self._observed.outages.at(trio.current_time())) is not None:
            raise away
        history = self._observed.objects(method).get(object_id)
        if history is None or not self._exists(object_id, history):
            raise RuntimeObjectNotFoundError(method, f'"{object_id}": not found')
        index = self._newest(object_id, history)
        if index is None:
            raise RuntimeObjectNotFoundError(method, f'"{object_id}": not recorded')
        reading = history.statuses.readings[index]
        if reading.error is not None:
            raise reading.error
        return cast("Mapping[str, Any]", reading.ok)

    def _newest(self, object_id: str, history: ObjectHistory) -> int | None:
        now, touched = trio.current_time(), self._changed_at(object_id)
        before = self.ledger.next_change(object_id)
        horizon = self._observed.outages.horizon(now)
        recovered = self._observed.recovered(history.statuses, now)
        newest = history.statuses.at(now, max(touched, recovered), before, horizon)
        listed = history.listed.at(now, touched, before)
        if newest is None or listed is None:
            return newest
        shown, told = history.listed.readings[listed], history.statuses.readings[newest]
        # A list may have shown the change that the next status has.
        if told.at < shown.at <= now and state_of(shown.ok) != state_of(told.ok):
            return history.statuses.at(now, shown.at, before, horizon)
        return newest

    def _changed_at(self, object_id: str) -> float:
        """Return when an object has changed last, by a call or its exit."""
        touched = self._touched.get(object_id, -math.inf)
        ended = self._life.exits.get(object_id, math.inf)
        return max(touched, ended) if ended <= trio.current_time() else touched

    def _exists(self, object_id: str, history: ObjectHistory) -> bool:
        now = trio.current_time()
        if object_id in self._removed:
            return False
        if object_id not in self._made and history.first > now:
            return False
        last = history.listed.at(now, before=self.ledger.next_change(object_id))
        if last is None or history.listed.times[last] > now:
            return True
        return history.listed.readings[last].ok is not None

    def _sandbox_of(self, container_id: str) -> str:
        made = self._made_from.get(container_id)
        if isinstance(made, v1.Container):
            return made.pod_sandbox_id
        for reading in self._observed.containers[container_id].listed.readings:
            if reading.ok is not None:
                return str(reading.ok.get("pod_sandbox_id", ""))
        return ""

    # Lists

    async def list_pod_sandboxes(
        self, previous: Listing[v1.PodSandbox] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.PodSandbox]:
        return await self._list("list_pod_sandboxes", v1.PodSandbox, uid)

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        return await self._list("list_containers", v1.Container, uid)

    async def _list(self, method: str, kind: type[E], uid: PodUid | None) -> Listing[E]:
        await self._wait(self._answered_at(method, uid), self._subject(method))
        before = self.ledger.next_of(uid) if uid is not None else math.inf
        failure = self._observed.failure(method, uid or "", trio.current_time(), before)
        if failure is not None:
            raise failure
        objects = self._observed.objects(method)
        # Made just now, and in no reading yet.
        fresh = {
            object_id: ObjectHistory(first=-math.inf)
            for object_id, made in self._made_from.items()
            if isinstance(made, kind) and object_id not in objects
        }
        found: dict[str, E] = {}
        for object_id, history in (objects | fresh).items():
            if uid is not None and self._owners.of(object_id).uid != uid:
                continue
            entry = self._entry(object_id, history, kind)
            if entry is not None and self._exists(object_id, history):
                found[object_id] = entry
        return Listing(found)

    def _answered_at(self, method: str, uid: PodUid | None) -> float:
        """Return when a list that is asked for now is answered."""
        if uid is None:
            return self._observed.first_lists.get(method, -math.inf)
        lists, now = self._observed.pod_lists.get((method, uid)), trio.current_time()
        at = lists.next_at(now, self.ledger.next_of(uid)) if lists is not None else math.inf
        return at if at <= now + _LATENCY else -math.inf

    def _entry(self, object_id: str, history: ObjectHistory, kind: type[E]) -> E | None:
        """Return an object as a list has it, with the newest state."""
        now, touched = trio.current_time(), self._changed_at(object_id)
        before, horizon = self.ledger.next_change(object_id), self._observed.outages.horizon(now)
        index = history.listed.at(now, touched, before, horizon)
        content = history.listed.readings[index].ok if index is not None else None
        entry = self._made_from.get(object_id) if content is None else read_message(kind, content)
        if entry is None:
            return None
        newest = self._newest(object_id, history)
        status = history.statuses.readings[newest].ok if newest is not None else None
        if status is not None:
            entry = with_state(entry, state_of(status))
        # `Listing`'s promise: an unchanged entry is the same object.
        shown = self._shown.get(object_id)
        if shown != entry:
            shown = self._shown[object_id] = entry
        return cast("E", shown)

    # The runtime itself

    async def _read(self, method: str, name: str = "", touched: float = -math.inf) -> Any:
        """Return what a reading call answered at this time, None if it was never made.

        It is not answered before the first answer that was recorded.
        """
        await trio.lowlevel.checkpoint()
        versions = self._observed.others.get((method, name))
        if versions is None or not versions.readings:
            return None
        await self._wait(versions.times[0], self._subject(method))
        now = trio.current_time()
        index = self._observed.answered_later(versions, now)
        if index is not None:
            await self._wait(versions.times[index], self._subject(method))
        else:
            index = versions.at(now, max(touched, self._observed.recovered(versions, now)))
        if index is None:
            return None
        reading = versions.readings[index]
        if reading.error is not None:
            raise reading.error
        return reading.ok

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        name = image.image
        touched = self._touched.get(name, -math.inf)
        content = await self._read("image_status", name, touched)
        if content is not None:
            return read_message(v1.Image, content)
        is_known = ("image_status", name) in self._observed.others
        return v1.Image(id=name, repo_tags=[name]) if not is_known or touched > 0 else None
