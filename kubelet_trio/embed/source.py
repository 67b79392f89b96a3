"""The pods that the program wants: a source like a manifest directory, written by calls.

One entry a pod name. Calls change the set at once; `wait_applied` says when the merge, and
with it the pods' workers, know of a change. What is to outlive the program (`keep`, `apply`)
is put into `<root>/kept.json` by this source's own task, its only writer, and is wanted again
when the kubelet is opened again; what is not there is ended then. A file that does not parse
ends nothing: the kubelet refuses to open.
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
class Wanted:
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
    """Tells when its reader has dealt with everything that was put here.

    The merge reads, publishes without awaiting, and reads again: when it comes for the
    next, the one before has reached the pods' workers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.applied: AsyncValue[int] = AsyncValue(0)
        self.version: AsyncValue[int] = AsyncValue(0)
        self._taken = 0

    def put(self, value: SourceSnapshot) -> None:
        super().put(value)
        self.version.value += 1

    async def wait_value(self) -> SourceSnapshot:
        self.applied.value = self._taken
        value = await super().wait_value()
        self._taken = self.version.value
        return value


class EmbeddedSource:
    """A `Source` that the program writes. See the module."""

    name = SOURCE

    def __init__(self, root: Path, offload: Offload) -> None:
        self._path = root / _FILE
        self._offload = offload
        self._wanted: dict[PodKey, Wanted] = {}
        self._mailbox = _Mailbox()
        self._saved: AsyncValue[int] = AsyncValue(0)  # the version that the file has
        self._in_file: list[Wanted] = []
        self.snapshots: Latest[SourceSnapshot] = self._mailbox
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    @property
    def origin(self) -> str:
        return ORIGIN

    @property
    def wanted(self) -> Mapping[PodKey, Wanted]:
        return self._wanted

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return int(self._mailbox.version.value)

    async def load(self) -> None:
        """Want again what was kept by an earlier life, and deliver: before `run`.

        Raises OSError or ValueError, naming the file.
        """
        self._in_file = await self._offload(read_kept, self._path)
        self._wanted = {wanted.key: wanted for wanted in self._in_file}
        self._deliver()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the file true, until cancelled. Deliveries are made by the calls themselves."""
        task_status.started()
        while True:
            await self._mailbox.version.wait_value(lambda version: version > self._saved.value)
            try:
                await self._save()
            except OSError as exc:
                # Whoever waits to have it on disk waits on: a full disk may have room again.
                log.error("embed.keep_failed", path=str(self._path), error=str(exc))
                await trio.sleep(_RETRY)

    def put(self, wanted: Iterable[Wanted]) -> int:
        """Want pods, each in place of one of its name; return the version for the waits."""
        for one in wanted:
            self._wanted[one.key] = one
        return self._deliver()

    def drop(self, uids: Iterable[PodUid]) -> int:
        """Stop wanting pods; return the version for the waits."""
        gone = set(uids)
        self._wanted = {key: one for key, one in self._wanted.items() if one.uid not in gone}
        return self._deliver()

    async def wait_applied(self, version: int) -> None:
        """Wait until the pods' workers know of everything up to a version."""
        await self._mailbox.applied.wait_value(lambda applied: applied >= version)

    async def wait_saved(self, version: int) -> None:
        """Wait until what is kept of a version is on disk."""
        await self._saved.wait_value(lambda saved: saved >= version)

    async def _save(self) -> None:
        version = self.version
        kept = [one for one in self._wanted.values() if one.keep]
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


class _Kept(msgspec.Struct, omit_defaults=True):
    """An entry of the file; objects in the API's JSON form, with their kind."""

    pod: Pod
    objects: list[dict[str, Any]] = []


def read_kept(path: Path) -> list[Wanted]:
    """Return what a file of kept pods holds. Raises ValueError naming the file, or OSError."""
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[_Kept])
        return [
            Wanted(e.pod, tuple(_object(value) for value in e.objects), keep=True) for e in entries
        ]
    except FileNotFoundError:
        return []
    except (*JSON_ERRORS, KeyError) as exc:
        raise ValueError(f"{path} does not parse: {exc}") from exc


def _object(value: dict[str, Any]) -> ApiObject:
    loaded: ApiObject = msgspec.convert(value, KINDS[value["kind"]])
    return loaded


def _write(path: Path, kept: list[Wanted]) -> None:
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
    write_aside(path, msgspec.json.encode(entries))  # for ourselves only: it may hold secrets
