"""User namespaces: which ids of the host a pod's users have.

Each pod with `hostUsers: false` has a block of ids of its own. It is written to
`<root-dir>/pods/<uid>/userns`, in the Go kubelet's format, before the sandbox is made, and belongs
to the pod while its directory exists: volumes keep their owners over restarts of agent and machine,
and either agent can take the node over. The blocks are those that `getsubids` gives the user
`kubelet`; without that user or tool, all ids above the first block.
"""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from kubelet_trio.cri import v1
from kubelet_trio.model import (
    JSON_ERRORS,
    Offload,
    PodUid,
    in_user_namespace,
    mapped_ids,
    sync_directory,
    write_aside,
)

DEFAULT_IDS = 65536  # of one pod, `userNamespaces.idsPerPod`
_ALL_IDS = 2**32
_MOST_DIGITS = 10  # of an id
_USER = "kubelet"
_FILE = "userns"
_TOOL_LIMIT = 30.0  # seconds; the tool may ask a directory service


class UserNamespaceError(Exception):
    """A pod cannot have a user namespace. The text goes to its event."""


class _Mapping(msgspec.Struct, frozen=True):
    hostId: int  # noqa: N815  # the file's own names
    containerId: int  # noqa: N815
    length: int


class _Mappings(msgspec.Struct, frozen=True):
    uidMappings: list[_Mapping]  # noqa: N815
    gidMappings: list[_Mapping]  # noqa: N815


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids of the host that pods may be given."""

    first: int
    length: int
    owner: str = f"user {_USER!r}"


def check_range(ids: IdRange, per_pod: int, max_pods: int) -> None:
    """Raise `UserNamespaceError` if a range cannot be divided among the pods."""
    if ids.first % per_pod or ids.first < per_pod or ids.length % per_pod:
        raise UserNamespaceError(
            f"the ids of {ids.owner} are {ids.length} from {ids.first} on: both must be a "
            f"multiple of {per_pod}, and the first at least that"
        )
    if ids.length // per_pod < max_pods:
        raise UserNamespaceError(
            f"the {ids.length} ids of {ids.owner} are not enough for {max_pods} pods"
        )


def parse_getsubids(output: str) -> IdRange:
    """Parse what `getsubids kubelet` prints: one line, `0: kubelet 65536 2147483648`."""
    lines = output.strip().splitlines()
    parts = lines[0].split() if len(lines) == 1 else []
    ids = [int(part) for part in parts[2:] if part.isdecimal() and len(part) <= _MOST_DIGITS]
    if len(parts) != 4 or len(ids) != 2:
        raise UserNamespaceError(f"getsubids: expected one range of ids, got {output[:200]!r}")
    first, length = ids
    return IdRange(first, length)


def host_range(per_pod: int) -> IdRange:
    """Return the host's ids for pods. Blocks. Raises `UserNamespaceError`."""
    if in_user_namespace():
        # Those of the machine, which /etc/subuid gives to the user `kubelet`, are none of ours.
        spare = max(mapped_ids() // per_pod - 1, 0) * per_pod
        return IdRange(per_pod, spare, "the agent's user namespace, beside its own,")
    everything = IdRange(per_pod, _ALL_IDS - per_pod)
    try:
        pwd.getpwnam(_USER)
    except KeyError:
        return everything
    import shutil  # deferred: it brings the compressors

    tool = shutil.which("getsubids")
    if tool is None:
        return everything
    # One mapping serves both, so the subordinate users and groups must be the same ids.
    users, groups = _ask(tool, _USER), _ask(tool, "-g", _USER)
    if users != groups:
        raise UserNamespaceError(f"subuids and subgids of user {_USER!r} differ")
    return parse_getsubids(users)


def _ask(*command: str) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, check=True, text=True, timeout=_TOOL_LIMIT
        ).stdout
    except (OSError, subprocess.SubprocessError) as exc:
        raise UserNamespaceError(f"{' '.join(command)}: {exc}") from exc


class UserNamespaceManager:
    """The blocks of all pods of the node; those on disk are taken."""

    def __init__(
        self,
        pods_dir: Path,
        offload: Offload,
        *,
        per_pod: int = DEFAULT_IDS,
        max_pods: int = 110,
        find_range: Callable[[int], IdRange] = host_range,
    ) -> None:
        self._pods_dir = pods_dir
        self._offload = offload
        self._per_pod = per_pod
        self._max_pods = max_pods
        self._find_range = find_range
        self._range: IdRange | None = None
        self._lock = trio.Lock()  # two pods must not find the same block free

    async def get_or_create(self, uid: PodUid) -> v1.UserNamespace:
        """Return a pod's user namespace. Raises `UserNamespaceError` or OSError."""
        async with self._lock:
            mapping = await self._offload(self._get_or_create, uid)
        mappings = [v1.IdMapping(host_id=mapping.hostId, container_id=0, length=mapping.length)]
        return v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=mappings, gids=list(mappings))

    def _get_or_create(self, uid: PodUid) -> _Mapping:
        if self._range is None:
            found = self._find_range(self._per_pod)
            check_range(found, self._per_pod, self._max_pods)
            self._range = found
        own = read_mapping(self._pods_dir / uid)
        if own is not None:
            return own
        mapping = self._free_block(self._range)
        _write(self._pods_dir / uid, mapping)
        return mapping

    def _free_block(self, ids: IdRange) -> _Mapping:
        taken: list[tuple[int, int]] = []
        for directory in self._pods_dir.iterdir() if self._pods_dir.is_dir() else ():
            other = read_mapping(directory)
            if other is not None:
                taken.append((other.hostId, other.hostId + other.length))
        last = ids.first + ids.length - self._per_pod
        for first in range(ids.first, last + 1, self._per_pod):
            if not any(begin < first + self._per_pod and first < end for begin, end in taken):
                return _Mapping(hostId=first, containerId=0, length=self._per_pod)
        raise UserNamespaceError("could not find an empty slot to allocate a user namespace")


def read_mapping(directory: Path) -> _Mapping | None:
    """Return the mapping in a pod's directory, None if it has none.

    Raises `UserNamespaceError` if it is invalid, or OSError.
    """
    path = directory / _FILE
    try:
        written = msgspec.json.decode(path.read_bytes(), type=_Mappings)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except JSON_ERRORS as exc:
        raise UserNamespaceError(f"{path}: invalid user namespace mappings file: {exc}") from exc
    one = written.uidMappings[0] if len(written.uidMappings) == 1 else None
    if one is None or written.uidMappings != written.gidMappings or one.containerId:
        raise UserNamespaceError(
            f"{path}: expected one and the same mapping of users and groups, from 0 on"
        )
    # Never the host's own users: the pod's root would be the host's.
    if one.hostId <= 0 or one.length <= 0 or one.hostId + one.length > _ALL_IDS:
        raise UserNamespaceError(f"{path}: ids {one.length} from {one.hostId} on are out of range")
    return one


def _write(directory: Path, mapping: _Mapping) -> None:
    """Write durably: after a power cut the ids on the pod's volumes are still its own."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    written = msgspec.json.encode(_Mappings([mapping], [mapping]))
    write_aside(directory / _FILE, written, mode=0o644, sync=True)
    sync_directory(directory)
