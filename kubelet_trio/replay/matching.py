"""Match the changing calls of the replayed agent with the recorded ones. Pure.

Calls are compared by what they are about: a pod's sandbox, a container by its name, an object by
its id. Of one such subject they come in the recorded order. Calls about different subjects may
change places within the tolerance, since a recorded agent is as late as its threads were.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubelet_trio.cri import v1
from kubelet_trio.recorder import Kind, read_body
from kubelet_trio.replay.grants import Grants, granted_fields
from kubelet_trio.replay.recorded import LISTS, Life, RecordedCall

# What upkeep does depends on files and disks, which no recording has: neither missed nor refused.
FREE = frozenset(
    {
        "reopen_container_log",
        "remove_image",
        "update_runtime_config",
        "checkpoint_container",
    }
)
# Garbage collection comes in periods from the agent's start, which a later segment does not have.
LOOSE = frozenset({"remove_container", "remove_pod_sandbox"})
LOOSE_TOLERANCE = 90.0  # s

# Of the resources of a container: what the managers give it.
CPUSETS = {"cpuset_cpus": "CPUs", "cpuset_mems": "memory of node"}

# What failed is tried again after a delay with a jitter, which a replay does not have: by so much
# earlier, at most. Half of the longest delay of `pods.worker.holds`.
RETRY_SPREAD = 5.0  # s
_RETRIED_WITHIN = 17.0  # s

_WORDS = {
    "run_pod_sandbox": "run the sandbox",
    "stop_pod_sandbox": "stop the sandbox",
    "remove_pod_sandbox": "remove the sandbox",
    "update_pod_sandbox_resources": "resize the sandbox",
    "create_container": "create container",
    "start_container": "start container",
    "stop_container": "stop container",
    "remove_container": "remove container",
    "update_container_resources": "resize container",
    "pull_image": "pull image",
    "remove_image": "remove image",
    "reopen_container_log": "reopen the log of container",
}


@dataclass(frozen=True, slots=True)
class Owner:
    """The pod that an object of the runtime belongs to, and its container."""

    uid: str
    pod: str  # namespace/name
    container: str = ""
    attempt: int = 0


NOBODY = Owner("", "")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about, and what of it must be the same.

    `detail` compares besides the subject: the attempt of a container, the grace period of a stop.
    """

    method: str
    key: str
    owner: Owner
    detail: str = ""

    @property
    def words(self) -> str:
        """The call as a report says it: `create container web, attempt 2`."""
        verb = _WORDS.get(self.method, self.method)
        what = self.owner.container if verb.endswith("container") else ""
        if self.method in ("pull_image", "remove_image"):
            what = self.key
        return f"{verb} {what}".rstrip() + (f", {self.detail}" if self.detail else "")


class Owners:
    """Whose the ids of a recording are: from the answers of calls and from lists."""

    def __init__(self, life: Life, grants: Grants | None = None) -> None:
        """`grants` is what plugins have given; None: it is not known."""
        self._owners: dict[str, Owner] = {}
        self._grants = grants
        # Without the machine, which older recordings lack, nobody gives CPUs away.
        entries = (*life.snapshot, *life.news)
        has_machine = any(entry.kind is Kind.MACHINE for entry in entries)
        self._compares_sets = has_machine and not life.facts.get("only")
        for call in life.calls:
            if call.method == "run_pod_sandbox" and call.ok:
                self._owners[call.ok] = sandbox_owner(call.request.get("config"))
        for (method, _), readings in life.readings.items():
            for reading in readings:
                for message in _messages(method, reading.ok):
                    self._learn(message)
        for call in life.calls:
            if call.method == "create_container" and call.ok:
                self._owners[call.ok] = self._created(call.request)

    def of(self, object_id: str) -> Owner:
        return self._owners.get(object_id, NOBODY)

    def names(self) -> dict[str, str]:
        """Return the names of pods by UID."""
        return {owner.uid: owner.pod for owner in self._owners.values() if owner.uid}

    def _learn(self, message: Mapping[str, Any]) -> None:
        labels = message.get("labels") or {}
        uid = labels.get("io.kubernetes.pod.uid", "")
        if not uid or not message.get("id"):
            return
        namespace, name = (labels.get(f"io.kubernetes.pod.{k}", "") for k in ("namespace", "name"))
        attempt = int((message.get("metadata") or {}).get("attempt") or 0)
        container = labels.get("io.kubernetes.container.name", "")
        self._owners[message["id"]] = Owner(uid, f"{namespace}/{name}", container, attempt)

    def _created(self, request: Mapping[str, Any]) -> Owner:
        pod = sandbox_owner(request.get("sandbox_config"))
        if not pod.uid:
            pod = self.of(str(request.get("pod_sandbox_id")))
        meta = (request.get("config") or {}).get("metadata") or {}
        return Owner(pod.uid, pod.pod, str(meta.get("name", "")), int(meta.get("attempt") or 0))

    def subject(self, method: str, request: Mapping[str, Any]) -> Subject:
        """Return what a call is about, by the fields of its request."""
        if method in ("run_pod_sandbox", "create_container"):
            return self._made(method, request)
        if method in ("pull_image", "remove_image"):
            image = str((request.get("image") or {}).get("image", ""))
            owner = sandbox_owner(request.get("sandbox"))
            return Subject(method, image, owner)
        object_id = str(request.get("container_id") or request.get("pod_sandbox_id") or "")
        detail = _detail(method, request)
        if method == "update_container_resources" and self._compares_sets:
            resources = request.get("linux") or request.get("resources") or {}
            detail = ", ".join(filter(None, (detail, *_sets(resources))))
        return Subject(method, object_id, self.of(object_id), detail)

    def _made(self, method: str, request: Mapping[str, Any]) -> Subject:
        if method == "run_pod_sandbox":
            owner = sandbox_owner(request.get("config"))
            return Subject(method, owner.uid, owner)
        owner = self._created(request)
        config = request.get("config") or {}
        linux = config.get("linux") or {}
        sets = _sets(linux.get("resources") or {}) if self._compares_sets else ()
        given = self._grants.words(config) if self._grants is not None else ()
        detail = ", ".join((f"attempt {owner.attempt}", *sets, *given))
        return Subject(method, f"{owner.uid}/{owner.container}", owner, detail)


def _sets(resources: Mapping[str, Any]) -> Iterator[str]:
    for name, word in CPUSETS.items():
        if resources.get(name):
            yield f"{word} {resources[name]}"


def _detail(method: str, request: Mapping[str, Any]) -> str:
    if method == "stop_container":
        return f"grace {request.get('timeout', request.get('grace_period', 0)) or 0} s"
    if method == "update_container_resources":
        found = request.get("linux") or request.get("resources") or {}
        parts = (
            f"{word} {found[name]}"
            for word, name in (
                ("memory", "memory_limit_in_bytes"),
                ("CPU quota", "cpu_quota"),
                ("CPU shares", "cpu_shares"),
            )
            if found.get(name)
        )
        return ", ".join(parts)
    return ""


def sandbox_owner(config: Any) -> Owner:
    """Return the pod of a sandbox' config."""
    meta = (config or {}).get("metadata") or {}
    name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
    return Owner(str(meta.get("uid", "")), name if meta else "")


def _messages(method: str, ok: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(ok, dict):
        return
    if method in LISTS:
        yield from ok["entries"]
    elif method == "container_status":
        yield ok.get("status") or {}
    elif method == "pod_sandbox_status":
        yield ok


class Failures:
    """When something failed that is tried again, by pod."""

    def __init__(self, life: Life, owners: Owners) -> None:
        self._times: dict[str, list[float]] = {}
        for call in life.calls:
            if call.error is not None:
                self._add(owners.subject(call.method, call.request).owner.uid, call.ended)
        for readings in life.readings.values():
            for reading in readings:
                if reading.error is not None:
                    self._add("", reading.at)
        for operation in life.volume_calls:
            if operation.error:
                self._add("", operation.ended)
        asked: set[str] = set()
        for entry in life.news:
            if entry.kind is Kind.PLAN and entry.body and _has_failed(read_body(entry.body)):
                self._add(entry.key, entry.at)
            elif entry.kind is Kind.ASKED:
                body = read_body(entry.body)
                # Who asks again has failed before.
                is_again = body.get("request") is not None and entry.key in asked
                if is_again or body.get("error"):
                    self._add("", entry.at)
                if entry.key.startswith("ResourceClaim/"):
                    asked.add(entry.key)
        for times in self._times.values():
            times.sort()

    def _add(self, uid: str, at: float) -> None:
        self._times.setdefault(uid, []).append(at)

    def spread(self, uid: str, began: float) -> float:
        """Return by how much earlier a replay may do for a pod what it did at a time."""
        for times in (self._times.get(uid, ()), self._times.get("", ())):
            index = bisect_left(times, began - _RETRIED_WITHIN)
            if index < len(times) and times[index] <= began:
                return RETRY_SPREAD
        return 0.0


def _has_failed(body: Mapping[str, Any]) -> bool:
    """Whether a container waits because its start has failed, such as for a plugin."""
    waiting = (body.get("plan") or {}).get("waiting") or {}
    return any(reason.endswith("Error") for reason, _ in waiting.values())


class Ledger:
    """The recorded calls that the replayed agent has not made yet."""

    def __init__(self, calls: Iterable[RecordedCall], owners: Owners) -> None:
        self.subjects: dict[int, Subject] = {}
        self._waiting: dict[tuple[str, str], deque[RecordedCall]] = {}
        self._by_object: dict[str, list[RecordedCall]] = {}
        self._by_pod: dict[str, list[RecordedCall]] = {}
        for call in calls:
            subject = owners.subject(call.method, call.request)
            self.subjects[call.number] = subject
            self._waiting.setdefault((call.method, subject.key), deque()).append(call)
            if call.method not in FREE:
                self._by_object.setdefault(subject.key, []).append(call)
                self._by_pod.setdefault(subject.owner.uid, []).append(call)

    def take(self, subject: Subject, now: float) -> RecordedCall | None:
        """Return the next recorded call of a subject, which is then made; None: there is none."""
        waiting = self._waiting.get((subject.method, subject.key))
        if not waiting:
            return None
        call = waiting.popleft()
        call.made_at = now
        return call

    def give_back(self, call: RecordedCall) -> None:
        """Take back that a call was made."""
        subject = self.subjects[call.number]
        self._waiting[subject.method, subject.key].appendleft(call)
        call.made_at = None

    def next_change(self, object_id: str) -> float:
        """Return the place of the next recorded call about an object; infinite if none is left."""
        return _next(self._by_object.get(object_id, ()))

    def next_of(self, uid: str) -> float:
        """Return the place of the next recorded call for a pod, likewise."""
        return _next(self._by_pod.get(uid, ()))


def _next(calls: Iterable[RecordedCall]) -> float:
    return next((call.order for call in calls if call.made_at is None), math.inf)


def tolerance_of(method: str, tolerance: float) -> float:
    """Return by how many seconds a call may come earlier or later than it was recorded."""
    return max(tolerance, LOOSE_TOLERANCE) if method in LOOSE else tolerance


_PER_STOP = 2.0  # s by which the grace period of a stop may differ


def same_detail(recorded: Subject, decided: Subject) -> bool:
    """Whether a call has the same detail; the grace period of a stop shrinks with the time."""
    if recorded.method != "stop_container":
        return recorded.detail == decided.detail
    then, now = (int(each.detail.split()[1]) for each in (recorded, decided))
    return abs(then - now) <= _PER_STOP


def container_fields(config: v1.ContainerConfig) -> dict[str, Any]:
    """Return what of a container's config is compared."""
    meta = config.metadata or v1.ContainerMetadata()
    linux = config.linux.resources if config.linux is not None else None
    cpusets = {name: getattr(linux, name) for name in CPUSETS} if linux is not None else {}
    return {
        "metadata": {"name": meta.name, "attempt": meta.attempt},
        "linux": {"resources": cpusets},
        **granted_fields(config),
    }


def sandbox_fields(config: v1.PodSandboxConfig) -> dict[str, Any]:
    """Return what of a sandbox's config tells whose it is."""
    meta = config.metadata or v1.PodSandboxMetadata()
    return {"metadata": {"uid": meta.uid, "name": meta.name, "namespace": meta.namespace}}
