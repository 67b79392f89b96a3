"""Source `embedded`: the pods that the program wants, changed by calls.

It has one entry per pod name. Calls change the set immediately; `wait_applied` waits until the
merge has passed a change to the pods' workers. Pods that outlive the program (`keep`, `apply`)
are written to `<root>/kept.json` by this source's task, the file's only writer. They are wanted
again when the kubelet is opened again; all other pods end then. If the file does not parse, the
kubelet refuses to open, and no pod ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.embed.intake import ORIGIN, SOURCE
from kubelet_trio.model import (
    JSON_ERRORS,
    Latest,
    Offload,
    PodKey,
    PodUid,
    StateForm,
    StateVersionError,
    get_logger,
    pod_key,
    pod_uid,
    write_aside,
)
from kubelet_trio.objects import KINDS, ApiObject
from kubelet_trio.sources import SourceProblem, SourceSnapshot

log = get_logger()

_FILE = "kept.json"
_RETRY = 5.0  # seconds until a write that failed is tried again


@dataclass(frozen=True, slots=True)
class WantedPod:
    """One pod that the program wants, with the objects that came with it."""

    pod: Pod
    objects: tuple[ApiObject, ...] = ()
    keep: bool = False  # to outlive the program

    @property
    def key(self) -> PodKey:
        return pod_key(self.pod)

    @property
    def uid(self) -> PodUid:
        return pod_uid(self.pod)


class _Mailbox(Latest[SourceSnapshot]):
    """A mailbox that knows which version its reader has applied."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: AsyncValue[int] = AsyncValue(0)
        self.version: AsyncValue[int] = AsyncValue(0)
        self._taken = 0

    def put(self, value: SourceSnapshot) -> None:
        super().put(value)
        self.version.value += 1

    async def wait_value(self) -> SourceSnapshot:
        # The merge reads, publishes without awaiting, and reads again: at its next read the
        # value before has reached the pods' workers.
        self.applied.value = self._taken
        value = await super().wait_value()
        self._taken = self.version.value
        return value


class EmbeddedSource:
    """A `Source` whose pods the program puts and drops."""

    name = SOURCE

    def __init__(self, root: Path, offload: Offload) -> None:
        self._path = root / _FILE
        self._offload = offload
        self._wanted: dict[PodKey, WantedPod] = {}
        self._mailbox = _Mailbox()
        self._saved: AsyncValue[int] = AsyncValue(0)  # the version in the file
        self._in_file: list[WantedPod] = []
        self.snapshots: Latest[SourceSnapshot] = self._mailbox
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    @property
    def origin(self) -> str:
        return ORIGIN

    @property
    def wanted(self) -> Mapping[PodKey, WantedPod]:
        return self._wanted

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return int(self._mailbox.version.value)

    async def load(self) -> None:
        """Load the pods that an earlier kubelet kept, and deliver them; call it before `run`.

        Raises OSError or ValueError, naming the file.
        """
        self._in_file = await self._offload(read_kept, self._path)
        self._wanted = {wanted.key: wanted for wanted in self._in_file}
        self._deliver()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the file up to date, until cancelled. The calls themselves deliver."""
        task_status.started()
        while True:
            await self._mailbox.version.wait_value(lambda version: version > self._saved.value)
            try:
                await self._save()
            except OSError as exc:
                # `wait_saved` keeps waiting: a full disk may have room again.
                log.error("embed.keep_failed", path=str(self._path), error=str(exc))
                await trio.sleep(_RETRY)

    def put(self, wanted: Iterable[WantedPod]) -> int:
        """Add pods, each replacing one of the same name; return the version for the waits."""
        for one in wanted:
            self._wanted[one.key] = one
        return self._deliver()

    def drop(self, uids: Iterable[PodUid]) -> int:
        """Remove pods; return the version for the waits."""
        gone = set(uids)
        self._wanted = {key: one for key, one in self._wanted.items() if one.uid not in gone}
        return self._deliver()

    async def wait_applied(self, version: int) -> None:
        """Wait until the pods' workers have all changes up to a version."""
        await self._mailbox.applied.wait_value(lambda applied: applied >= version)

    async def wait_saved(self, version: int) -> None:
        """Wait until the kept pods of a version are on disk."""
        await self._saved.wait_value(lambda saved: saved >= version)

    async def _save(self) -> None:
        # Taken before the write: changes during it have a later version, and are saved next.
        version = self.version
        kept = [one for one in self._wanted.values() if one.keep]
        # Most changes are of pods that end with the program: they cost no write.
        if kept != self._in_file:
            await self._offload(_write, self._path, kept)
            self._in_file = kept
        self._saved.value = version

    def _deliver(self) -> int:
        entries = self._wanted.values()
        objects = tuple(value for one in entries for value in one.objects)
        self.delivered = SourceSnapshot(self.name, tuple(one.pod for one in entries), objects)
        self._mailbox.put(self.delivered)
        return self.version


class _Kind(msgspec.Struct):
    kind: str


class _Kept(msgspec.Struct, omit_defaults=True):
    """An entry of the file; objects are in the API's JSON form, with their kind."""

    pod: Pod
    objects: list[dict[str, Any]] = []


class _Content(msgspec.Struct):
    pods: list[_Kept]


_FORM = StateForm(
    "the pods that a program keeps", _Content, version=2, without="they end with their program"
)


def read_kept(path: Path) -> list[WantedPod]:
    """Return the content of a file of kept pods. Raises ValueError naming the file, or OSError."""
    try:
        content = path.read_bytes()
        if content.lstrip().startswith(b"["):  # version 1 was a plain list
            entries = msgspec.json.decode(content, type=list[_Kept])
        else:
            entries = _FORM.decode(content, path).pods
        return [
            WantedPod(e.pod, tuple(_object(value) for value in e.objects), keep=True)
            for e in entries
        ]
    except FileNotFoundError:
        return []
    except StateVersionError:
        raise
    except (*JSON_ERRORS, KeyError) as exc:
        raise ValueError(f"{path} does not parse: {exc}") from exc


def _object(value: dict[str, Any]) -> ApiObject:
    kind = msgspec.convert(value, _Kind).kind
    loaded: ApiObject = msgspec.convert(value, KINDS[kind])
    return loaded


def _write(path: Path, kept: list[WantedPod]) -> None:
    if not kept:
        path.unlink(missing_ok=True)
        return
    entries = [
        _Kept(
            one.pod,
            [{**msgspec.to_builtins(o), "kind": type(o).__name__} for o in one.objects],
        )
        for one in kept
    ]
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    write_aside(path, _FORM.encode(_Content(entries)))  # for ourselves only: it may hold secrets
