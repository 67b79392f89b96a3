"""The rules of the CSI node service (specification v1.11) as a state machine without I/O.

A driver asks `CsiRules` before each call and reports the result. The rules refuse a call as
the specification demands, with a gRPC status. What a caller may never do is recorded by name as
well: `violations` must be empty at the end of a test.

    with rules.operation(call) as operation:   # GRPCError: refused
        if operation.is_needed:                # False: done already, answer OK
            with operation.effect():
                ...                            # mount
    # leaving without an error: the caller is answered OK

Stages and targets survive the driver: `to_json` and `from_json`.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.csi import calls
from kubelet_trio.testing.csi.calls import AskedCapability, CsiCall, loaded_call, saved_call

MAX_TEXT = 128  # bytes of a string field ("Size Limits"); paths have the kernel's limit
MAX_MAP = 4096  # bytes of a map, or of all mount flags


class CsiRule(enum.StrEnum):
    """What a caller must keep; each value is the name of a violation."""

    REQUIRED_FIELD = "a required field is empty"
    SIZE = "a field is longer than the specification allows"
    ABSOLUTE_PATH = "a path is not absolute"
    CAPABILITY = "a call or a field needs a capability that the driver does not have"
    STAGED_FIRST = "published without a successful stage at this path"
    ONE_STAGING_PATH = "one volume staged at two paths"
    STAGING_DIRECTORY = "the staging path is not a directory"
    TARGET_PARENT = "the target's parent is not a directory"
    OWN_TARGET = "two volumes at one target"
    UNPUBLISHED_FIRST = "unstaged while published"
    SAME_ARGUMENTS = "repeated with other arguments"
    ONE_WRITER = "a volume for a single writer published at two targets"
    ONE_AT_A_TIME = "two calls for one volume at a time"
    SECRETS = "other secrets than the volume's"
    VOLUME_CONTEXT = "another volume context than the volume's"
    PUBLISH_CONTEXT = "another publish context than the attachment's"
    EPHEMERAL = "an ephemeral volume staged, or published twice"
    EXPANDED_WHERE_MOUNTED = "expanded where it is neither staged nor published"


class NodeFeature(enum.StrEnum):
    """`NodeServiceCapability.RPC.Type`."""

    STAGE_UNSTAGE_VOLUME = "STAGE_UNSTAGE_VOLUME"
    GET_VOLUME_STATS = "GET_VOLUME_STATS"
    EXPAND_VOLUME = "EXPAND_VOLUME"
    VOLUME_CONDITION = "VOLUME_CONDITION"
    SINGLE_NODE_MULTI_WRITER = "SINGLE_NODE_MULTI_WRITER"
    VOLUME_MOUNT_GROUP = "VOLUME_MOUNT_GROUP"


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """A call that broke a rule."""

    rule: CsiRule
    text: str
    call: CsiCall

    def __str__(self) -> str:
        return f"{self.call.method} {self.call.volume_id}: {self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class StoredVolume:
    """A volume that the driver has, and what calls for it must carry. None: anything."""

    volume_id: str
    kinds: frozenset[str] = frozenset({"mount", "block"})
    access_modes: frozenset[str] = frozenset(calls.ACCESS_MODES)
    volume_context: Mapping[str, str] | None = None
    publish_context: Mapping[str, str] | None = None
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by method
    max_bytes: int = 1 << 40


class _Phase(enum.StrEnum):
    """How far a stage or a target is."""

    MOUNTING = "mounting"  # perhaps mounted: the call goes on, was cut, or failed uncertainly
    MOUNTED = "mounted"  # mounted; the caller does not know
    ANSWERED = "answered"  # mounted; the caller has the answer OK
    UNMOUNTING = "unmounting"  # perhaps unmounted; the caller does not know


@dataclass(slots=True)
class _Place:
    """A staging path or a target."""

    call: CsiCall
    phase: _Phase

    @property
    def is_mounted(self) -> bool:
        return self.phase in (_Phase.MOUNTED, _Phase.ANSWERED)


@dataclass(slots=True)
class _Held:
    """All places of one volume, by path."""

    staged: dict[str, _Place] = field(default_factory=dict)
    published: dict[str, _Place] = field(default_factory=dict)
    size: int = 0


@dataclass(eq=False, slots=True)
class CsiOperation:
    """A call in progress, which the rules allow."""

    call: CsiCall
    is_needed: bool  # False: it was done before
    is_abandoned: bool = False  # the caller has given up: another call is no violation
    _places: dict[str, _Place] = field(default_factory=dict)
    _path: str = ""

    @contextmanager
    def effect(self) -> Iterator[None]:
        """Change what is mounted inside the block.

        A `GRPCError` with a final status says that nothing changed; after any other exception the
        volume counts as mounted and as unmounted, as it may be either.
        """
        before = self._places.get(self._path)
        if self.call.method in (calls.STAGE, calls.PUBLISH):
            self._places[self._path] = place = _Place(self.call, _Phase.MOUNTING)
        elif before is not None:
            place = before
            place.phase = _Phase.UNMOUNTING
        else:
            yield
            return
        try:
            yield
        except GRPCError as exc:
            if exc.status not in calls.UNCERTAIN:
                self._restore(before)
            raise
        if place.phase is _Phase.MOUNTING:
            place.phase = _Phase.MOUNTED

    def abandon(self) -> None:
        """Note that the caller does not wait any longer."""
        self.is_abandoned = True

    def _restore(self, before: _Place | None) -> None:
        if self.call.method in (calls.UNSTAGE, calls.UNPUBLISH):
            assert before is not None
            before.phase = _Phase.ANSWERED
        elif before is None or before.phase is not _Phase.UNMOUNTING:
            self._places.pop(self._path, None)
        else:
            self._places[self._path] = before

    def answer(self) -> None:
        """Note that the caller was answered OK."""
        if self.is_abandoned:
            return
        if self.call.method in (calls.UNSTAGE, calls.UNPUBLISH):
            self._places.pop(self._path, None)
        elif self.call.method in (calls.STAGE, calls.PUBLISH) and self._path in self._places:
            self._places[self._path].phase = _Phase.ANSWERED


class CsiRules:
    """What a driver has staged and published, and whether the callers keep the rules."""

    def __init__(
        self,
        features: Iterable[str] = tuple(NodeFeature),
        volumes: Iterable[StoredVolume] = (),
        *,
        creates: bool = True,
        shares_single_node: bool = True,
        is_directory: Callable[[str], bool] = os.path.isdir,
    ) -> None:
        """Create rules for a driver without any volume in use.

        Args:
            features: the capabilities of its node service.
            volumes: the volumes that it has.
            creates: whether it has a volume of every other id, too; else NOT_FOUND.
            shares_single_node: whether SINGLE_NODE_WRITER allows several targets, as the kubelet
                needs for two pods with one ReadWriteOnce volume, and as all drivers do that it
                works with. The specification says SHOULD be refused.
            is_directory: whether a path is a directory, in the driver's file system.
        """
        self.features = frozenset(features)
        self.volumes = {volume.volume_id: volume for volume in volumes}
        self.violations: list[RuleViolation] = []
        self.log: list[CsiCall] = []
        self._creates = creates
        self._shares_single_node = shares_single_node
        self._is_directory = is_directory
        self._held: dict[str, _Held] = {}
        self._pending: dict[str, CsiOperation] = {}

    # What a test asks

    def check(self) -> None:
        """Raise AssertionError if a caller broke a rule."""
        if self.violations:
            raise AssertionError("\n".join(map(str, self.violations)))

    def staged(self) -> dict[str, list[str]]:
        """Return staging paths by volume, also of those that are perhaps staged."""
        return {v: sorted(held.staged) for v, held in self._held.items() if held.staged}

    def published(self) -> dict[str, list[str]]:
        """Return targets by volume, also of those that are perhaps published."""
        return {v: sorted(held.published) for v, held in self._held.items() if held.published}

    def pending(self) -> list[CsiOperation]:
        """Return the calls in progress."""
        return list(self._pending.values())

    def pending_of(self, call: CsiCall) -> CsiOperation | None:
        """Return the call in progress that another one of its volume has to wait for."""
        return self._pending.get(call.volume_id) if call.method in calls.EXCLUSIVE else None

    def size(self, volume_id: str) -> int:
        """Return the bytes that a volume was expanded to; 0: never."""
        return self._held[volume_id].size if volume_id in self._held else 0

    def is_used(self, volume_id: str, path: str) -> bool:
        """Whether a volume is staged or published at a path."""
        held = self._held.get(volume_id, _Held())
        return path in held.staged or path in held.published

    # What a driver asks

    @contextmanager
    def operation(
        self, call: CsiCall, overlapped: CsiOperation | None = None
    ) -> Iterator[CsiOperation]:
        """Check a call; it is in progress inside the block, and answered OK at its end.

        Args:
            call: the call.
            overlapped: the one that was in progress when it came.

        Raises `GRPCError`: the answer instead.
        """
        self.log.append(call)
        self._check_fields(call)
        if overlapped is not None and not overlapped.is_abandoned:
            self._refuse_second(call, overlapped)
        if call.method not in calls.EXCLUSIVE:
            self._check_place(call)
            yield CsiOperation(call, True)
            return
        self._check_idle(call)
        operation = self._begin(call)
        self._pending[call.volume_id] = operation
        try:
            yield operation
            operation.answer()
        finally:
            del self._pending[call.volume_id]
        if call.method == calls.EXPAND:
            held = self._held.setdefault(call.volume_id, _Held())
            held.size = max(held.size, call.required_bytes)

    def _begin(self, call: CsiCall) -> CsiOperation:
        held = self._held.setdefault(call.volume_id, _Held())
        if call.method == calls.STAGE:
            return self._begin_stage(call, held)
        if call.method == calls.PUBLISH:
            return self._begin_publish(call, held)
        if call.method == calls.UNSTAGE:
            if held.published:
                targets = ", ".join(sorted(held.published))
                self._break(CsiRule.UNPUBLISHED_FIRST, call, f"still published at {targets}")
            path, places = call.staging_path, held.staged
        elif call.method == calls.UNPUBLISH:
            path, places = call.path, held.published
        else:
            self._check_place(call)
            return CsiOperation(call, True)
        return CsiOperation(call, path in places, _places=places, _path=path)

    def _begin_stage(self, call: CsiCall, held: _Held) -> CsiOperation:
        path = call.staging_path
        self._check_volume(call)
        if call.is_ephemeral:
            self._break(CsiRule.EPHEMERAL, call, "staged")
        for other in held.staged:
            if other != path:
                self._break(CsiRule.ONE_STAGING_PATH, call, f"{path}, and before at {other}")
        if not self._is_directory(path):
            self._break(CsiRule.STAGING_DIRECTORY, call, path)
        return self._repeated(call, held.staged, path)

    def _begin_publish(self, call: CsiCall, held: _Held) -> CsiOperation:
        self._check_volume(call)
        self._check_stage_of(call, held)
        for volume_id, other in self._held.items():
            if volume_id != call.volume_id and call.path in other.published:
                self._break(CsiRule.OWN_TARGET, call, f"{call.path} has {volume_id}")
        if not self._is_directory(os.path.dirname(call.path)):
            self._break(CsiRule.TARGET_PARENT, call, call.path)
        operation = self._repeated(call, held.published, call.path)
        if any(path != call.path for path in held.published):
            self._check_second_target(call)
        return operation

    def _check_stage_of(self, call: CsiCall, held: _Held) -> None:
        if call.is_ephemeral or NodeFeature.STAGE_UNSTAGE_VOLUME not in self.features:
            if call.staging_path:
                self._break(CsiRule.CAPABILITY, call, "a staging path without STAGE_UNSTAGE_VOLUME")
            return
        stage = held.staged.get(call.staging_path)
        if stage is None or stage.phase is not _Phase.ANSWERED:
            phase = "not staged" if stage is None else stage.phase
            self._break(CsiRule.STAGED_FIRST, call, f"{call.staging_path or 'no path'} is {phase}")
        if stage is not None and _access(stage.call) != _access(call):
            text = f"staged as {stage.call.capability}, published as {call.capability}"
            self._break(CsiRule.SAME_ARGUMENTS, call, text)

    def _check_second_target(self, call: CsiCall) -> None:
        """Apply the tables of "NodePublishVolume": a volume at another target already."""
        assert call.capability is not None
        mode = call.capability.access_mode
        if call.is_ephemeral:
            self._break(CsiRule.EPHEMERAL, call, "published at a second target")
        if mode == "SINGLE_NODE_SINGLE_WRITER":
            self._break(CsiRule.ONE_WRITER, call, call.path)
        shares = mode.startswith("MULTI_NODE") or mode == "SINGLE_NODE_MULTI_WRITER"
        if not shares and not self._shares_single_node:
            text = f"volume {call.volume_id} is published at another path"
            raise GRPCError(Status.FAILED_PRECONDITION, text)

    def _repeated(self, call: CsiCall, places: dict[str, _Place], path: str) -> CsiOperation:
        place = places.get(path)
        is_done = place is not None and place.is_mounted
        if place is not None and is_done and place.call.arguments != call.arguments:
            text = f"{place.call.arguments}, then {call.arguments}"
            self._break(CsiRule.SAME_ARGUMENTS, call, text, Status.ALREADY_EXISTS)
        return CsiOperation(call, not is_done, _places=places, _path=path)

    def _check_idle(self, call: CsiCall) -> None:
        pending = self._pending.get(call.volume_id)
        if pending is not None:
            self._refuse_second(call, pending)

    def _refuse_second(self, call: CsiCall, pending: CsiOperation) -> NoReturn:
        text = f"{pending.call.method} is in progress for volume {call.volume_id}"
        if not pending.is_abandoned:
            self._break(CsiRule.ONE_AT_A_TIME, call, text, Status.ABORTED)
        raise GRPCError(Status.ABORTED, text)

    def _check_place(self, call: CsiCall) -> None:
        """Check that stats or an expansion are for a path in use."""
        if self.is_used(call.volume_id, call.path):
            return
        text = f"volume {call.volume_id} is not at {call.path}"
        if call.method == calls.EXPAND:
            self._break(CsiRule.EXPANDED_WHERE_MOUNTED, call, text)
        raise GRPCError(Status.NOT_FOUND, text)

    def _check_volume(self, call: CsiCall) -> None:
        """Check a stage or a publish against the volume. An ephemeral one has no record."""
        assert call.capability is not None
        volume = self.volumes.get(call.volume_id)
        if volume is None:
            if not self._creates and not call.is_ephemeral:
                raise GRPCError(Status.NOT_FOUND, f"volume {call.volume_id} does not exist")
            return
        allowed = call.capability.access_mode in volume.access_modes
        if call.capability.kind not in volume.kinds or not allowed:
            text = f"volume {call.volume_id} does not support {call.capability}"
            raise GRPCError(Status.FAILED_PRECONDITION, text)
        wanted = volume.secrets.get(call.method)
        if wanted is not None and dict(call.secrets) != dict(wanted):
            text = f"keys {sorted(call.secrets)}, not {sorted(wanted)}"
            self._break(CsiRule.SECRETS, call, text, Status.UNAUTHENTICATED)
        context, attached = volume.volume_context, volume.publish_context
        if context is not None and call.driver_context != dict(context):
            self._break(CsiRule.VOLUME_CONTEXT, call, str(call.driver_context))
        if attached is not None and dict(call.publish_context) != dict(attached):
            self._break(CsiRule.PUBLISH_CONTEXT, call, str(dict(call.publish_context)))

    def _check_fields(self, call: CsiCall) -> None:
        for name in _REQUIRED.get(call.method, ()):
            if not getattr(call, name):
                self._break(CsiRule.REQUIRED_FIELD, call, name, Status.INVALID_ARGUMENT)
        if len(call.volume_id.encode()) > MAX_TEXT:
            self._break(CsiRule.SIZE, call, "volume_id", Status.INVALID_ARGUMENT)
        for name in ("publish_context", "volume_context", "secrets"):
            if _map_size(getattr(call, name)) > MAX_MAP:
                self._break(CsiRule.SIZE, call, name, Status.INVALID_ARGUMENT)
        for path in (call.path, call.staging_path):
            if path and not os.path.isabs(path):
                self._break(CsiRule.ABSOLUTE_PATH, call, path, Status.INVALID_ARGUMENT)
        needed = _NEEDED.get(call.method)
        if needed is not None and needed not in self.features:
            self._break(CsiRule.CAPABILITY, call, needed, Status.UNIMPLEMENTED)
        if call.capability is not None:
            self._check_capability(call, call.capability)

    def _check_capability(self, call: CsiCall, asked: AskedCapability) -> None:
        if asked.access_mode not in calls.ACCESS_MODES[1:]:
            self._break(CsiRule.REQUIRED_FIELD, call, "access_mode", Status.INVALID_ARGUMENT)
        newer = asked.access_mode in ("SINGLE_NODE_SINGLE_WRITER", "SINGLE_NODE_MULTI_WRITER")
        if newer and NodeFeature.SINGLE_NODE_MULTI_WRITER not in self.features:
            self._break(CsiRule.CAPABILITY, call, asked.access_mode, Status.INVALID_ARGUMENT)
        if asked.mount_group and NodeFeature.VOLUME_MOUNT_GROUP not in self.features:
            self._break(CsiRule.CAPABILITY, call, "volume_mount_group", Status.INVALID_ARGUMENT)
        if sum(len(flag.encode()) for flag in asked.mount_flags) > MAX_MAP:
            self._break(CsiRule.SIZE, call, "mount_flags", Status.INVALID_ARGUMENT)

    def _break(
        self,
        rule: CsiRule,
        call: CsiCall,
        text: str,
        status: Status = Status.FAILED_PRECONDITION,
    ) -> None:
        """Record a violation, and refuse the call."""
        self.violations.append(RuleViolation(rule, text, call))
        raise GRPCError(status, f"{rule}: {text}")

    # Across a restart of the driver

    def to_json(self) -> dict[str, Any]:
        """Return what must outlive the driver: places, sizes, and violations as texts."""
        return {
            "volumes": {
                volume_id: {
                    "size": held.size,
                    "staged": {path: _saved(place) for path, place in held.staged.items()},
                    "published": {path: _saved(place) for path, place in held.published.items()},
                }
                for volume_id, held in self._held.items()
                if held.staged or held.published or held.size
            },
        }

    def from_json(self, saved: Mapping[str, Any]) -> None:
        """Continue from what an earlier driver saved."""
        self._held = {
            volume_id: _Held(
                {path: _loaded(place) for path, place in held["staged"].items()},
                {path: _loaded(place) for path, place in held["published"].items()},
                held["size"],
            )
            for volume_id, held in saved["volumes"].items()
        }


_REQUIRED = {
    calls.STAGE: ("volume_id", "staging_path", "capability"),
    calls.UNSTAGE: ("volume_id", "staging_path"),
    calls.PUBLISH: ("volume_id", "path", "capability"),
    calls.UNPUBLISH: ("volume_id", "path"),
    calls.STATS: ("volume_id", "path"),
    calls.EXPAND: ("volume_id", "path"),
}
_NEEDED = {
    calls.STAGE: NodeFeature.STAGE_UNSTAGE_VOLUME,
    calls.UNSTAGE: NodeFeature.STAGE_UNSTAGE_VOLUME,
    calls.EXPAND: NodeFeature.EXPAND_VOLUME,
}


def _access(call: CsiCall) -> tuple[str, str] | None:
    asked = call.capability
    return None if asked is None else (asked.kind, asked.access_mode)


def _map_size(entries: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in entries.items())


def _saved(place: _Place) -> dict[str, Any]:
    return {"phase": place.phase, "call": saved_call(place.call)}


def _loaded(saved: Mapping[str, Any]) -> _Place:
    return _Place(loaded_call(saved["call"]), _Phase(saved["phase"]))
