"""The record of a pod: one small file under its directory, for the next agent.

The runtime says what runs and the manifest what is wanted. Neither says that a teardown was
decided, when the pod was first seen, or what a pod looked like whose manifest went while the agent
was down. `<root-dir>/pods/<uid>/kubelet-trio.json` does, and it is written before the first stop
of a teardown (design: a recorded decision).

A file that does not parse is kept aside as `*.corrupt` and named in the log; the pod is
then known from its manifest and the runtime alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from lightkube.models.core_v1 import EphemeralContainer, Pod

from kubelet_trio.model import (
    JSON_ERRORS,
    ContainerId,
    Offload,
    PodUid,
    StateForm,
    get_logger,
    remove_tree,
    write_aside,
)
from kubelet_trio.pods.types import EndReason, PodResize, TerminationRequest

log = get_logger()

_FILE = "kubelet-trio.json"


class PodRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pod as of its last material change; `pod` carries its last status.

    The resources of an admitted pod are those that this node has allocated to it.
    """

    uid: PodUid
    pod: Pod
    start_time: float  # Unix seconds at which an agent first saw the pod: deadlines count from it
    termination: TerminationRequest | None = None
    pre_stopped: tuple[ContainerId, ...] = ()  # whose preStop hooks have ended
    admitted: bool = False  # a restarted agent does not decide on its admission again
    removed: bool = False  # its manifest went, whatever ended the pod
    returns: Pod | None = None  # its manifest is back since: it starts anew once it is gone
    restarting: tuple[ContainerId, ...] = ()  # stopped, to start again whatever the policy says
    resize: PodResize | None = None  # the one in progress; `pod` has the allocated resources
    allocates: bool = False  # written by an agent that resizes pods in place
    added: tuple[EphemeralContainer, ...] = ()  # on this node; `pod` is without them


RECORD = StateForm(
    "a pod's record",
    PodRecord,
    version=1,
    without="the pod is known from its manifest and the runtime alone",
)


class PodRecords:
    """The records on disk. One writer a pod: its worker."""

    def __init__(self, pods_dir: Path, offload: Offload) -> None:
        self._pods_dir = pods_dir
        self._offload = offload

    async def write(self, record: PodRecord) -> None:
        """Replace the record of its pod; make the pod's directory if it is missing."""
        await self._offload(_write, self._pods_dir / record.uid, record)

    async def remove(self, uid: PodUid, first: Callable[[], None] = lambda: None) -> None:
        """Remove the pod's directory, in which no volumes are any more. May raise OSError.

        `first` removes what the record is to outlive, in the same thread: a restart in between
        finds the rest by the record.
        """
        await self._offload(_remove_after, first, self._pods_dir / uid)


def wanted_pods(records: Mapping[PodUid, PodRecord]) -> list[Pod]:
    """Return the pods that a source may go on wanting if its manifest is broken now.

    A pod that ended by itself is among them: otherwise it would be removed, and run once more
    when the manifest is mended. A pod that was being removed is not, unless it was wanted again
    by then.
    """
    pods = (r.returns if is_removed(r) else r.pod for r in records.values())
    return [pod for pod in pods if pod is not None]


def is_removed(record: PodRecord) -> bool:
    """Whether nothing of a pod is to stay on the node, wanted again or not."""
    ended = record.termination
    return record.removed or (ended is not None and ended.reason is EndReason.DELETED)


def load_records(pods_dir: Path) -> dict[PodUid, PodRecord]:
    """Read every record, as at a start of the agent. Blocks.

    Raises OSError, and `StateVersionError` for the record of a newer agent.
    """
    records: dict[PodUid, PodRecord] = {}
    if not pods_dir.is_dir():
        return records
    for directory in sorted(pods_dir.iterdir()):
        path = directory / _FILE
        try:
            records[PodUid(directory.name)] = RECORD.decode(path.read_bytes(), path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # a directory of the Go kubelet's: what the runtime's labels say must do
        except JSON_ERRORS as exc:
            aside = path.with_suffix(".corrupt")
            path.replace(aside)
            log.error("pod.record_corrupt", path=str(path), kept_as=str(aside), error=str(exc))
    return records


def encode_pod_record(record: PodRecord) -> bytes:
    """Return a record as it is on disk."""
    return RECORD.encode(record)


def decode_pod_record(content: bytes, path: str) -> PodRecord:
    """Return the record of a file's content. Raises as `StateForm.decode`."""
    return RECORD.decode(content, path)


def read_pod_records(pods_dir: Path) -> list[tuple[PodUid, bytes]]:
    """Return the records as they are on disk now, whatever is in them. Blocks. Raises OSError."""
    found = []
    for path in sorted(pods_dir.glob(f"*/{_FILE}")):
        try:
            found.append((PodUid(path.parent.name), path.read_bytes()))
        except FileNotFoundError:
            continue  # the pod went meanwhile
    return found


def unrecorded_pods(pods_dir: Path) -> frozenset[PodUid]:
    """Return the pods with a directory and no record: another kubelet has started them. Blocks."""
    if not pods_dir.is_dir():
        return frozenset()
    return frozenset(
        PodUid(directory.name)
        for directory in pods_dir.iterdir()
        if directory.is_dir() and not (directory / _FILE).exists()
    )


def _write(directory: Path, record: PodRecord) -> None:
    """Replace a pod's record; make its directory if it is missing. Raises OSError."""
    # Not synced: it must survive the agent, and the page cache does. After a power cut no container
    # runs that it could describe.
    path, content = directory / _FILE, RECORD.encode(record)
    try:
        write_aside(path, content)
    except FileNotFoundError:  # the first one
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        write_aside(path, content)


# Made by us (or by the Go kubelet); nothing is ever mounted in them.
_OWN_TREES = ("containers", "plugins")
_OWN_DIRECTORIES = ("volumes", "volume-subpaths", "volumeDevices")


def _remove_after(first: Callable[[], None], directory: Path) -> None:
    first()
    _remove(directory)


def _remove(directory: Path) -> None:
    """Remove what is ours. What volumes left behind stays, and makes it fail (ENOTEMPTY)."""
    try:
        there = frozenset(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in _OWN_TREES:
        if name in there:
            remove_tree(directory / name)
    for name in _OWN_DIRECTORIES:
        if name in there:
            _remove_empty(directory / name)
    # The record goes last: while it exists, a restarted agent knows the pod and removes the rest.
    for name in (
        "userns",
        ".userns.new",
        "etc-hosts",
        f".{_FILE}.new",
        f"{Path(_FILE).stem}.corrupt",
        _FILE,
    ):
        if name in there:
            (directory / name).unlink(missing_ok=True)
    directory.rmdir()


def _remove_empty(directory: Path) -> None:
    """Remove a tree of empty directories. Raises OSError if there is anything else in it."""
    for entry in directory.iterdir():
        _remove_empty(entry)
    directory.rmdir()
