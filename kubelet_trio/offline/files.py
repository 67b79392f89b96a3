"""A private directory of small files, one per item: blocking.

    <root-dir>/offline/                          0700
        pod-<digest>.json  secret-<digest>.json  0600 ...

The first line of a file has the item's kind and name, and the SHA-256 of the rest. Files must
survive a power cut: they are written aside, synced, and renamed.

A file that was truncated or edited, or that other users own or may access, is renamed to
`*.corrupt`, kept for a week and logged; its item is then unknown.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from lightkube.models.core_v1 import Node, Pod

from kubelet_trio.model import (
    JSON_ERRORS,
    PodUid,
    StateForm,
    StateVersionError,
    check_version,
    get_logger,
    metadata,
    write_aside,
)
from kubelet_trio.objects import (
    KINDS,
    ApiObject,
    KnownToken,
    ObjectKey,
    ServiceFacts,
    TokenRequest,
    object_key,
)

log = get_logger()

_FORMAT = 1
_NEW = ".new"
_CORRUPT = ".corrupt"
_SUFFIX = ".json"
_LONGEST_HEAD = 1 << 16  # bytes of a first line
_LARGEST = 64 << 20  # bytes of a file that is read
_CORRUPT_KEPT = 7 * 24 * 3600.0  # seconds


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """The tokens of one pod."""

    uid: PodUid
    tokens: tuple[tuple[TokenRequest, KnownToken], ...]


class Item(NamedTuple):
    """The key of a kept item: pods and tokens by UID, objects by namespace and name."""

    kind: str
    name: str

    @property
    def file_name(self) -> str:
        # A digest, because an item's name may be longer than a file name may be (NAME_MAX).
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:40]
        return f"{self.kind.lower()}-{digest}{_SUFFIX}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


SERVICES, NODE = Item("Services", ""), Item("Node", "")
_MODELS: Mapping[str, Any] = {
    "Pod": Pod,
    "Tokens": KnownTokens,
    "Services": tuple[ServiceFacts, ...],
    "Node": Node,
}


def pod_item(uid: str) -> Item:
    return Item("Pod", uid)


def tokens_item(uid: str) -> Item:
    return Item("Tokens", uid)


def object_item(key: ObjectKey) -> Item:
    return Item(key.kind, f"{key.namespace}/{key.name}")


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    """The first line."""

    format: int
    kind: str
    name: str
    sha256: str


class _Format(msgspec.Struct):
    format: Annotated[int, msgspec.Meta(ge=1)]


_FORM = StateForm(
    "what the API server last said",
    _Head,
    _FORMAT,
    "a start without the API server does not know of it",
)


def encode(item: Item, value: object) -> tuple[bytes, bytes]:
    """Return a file's content, and a digest of the value."""
    body = msgspec.json.encode(value)
    digest = hashlib.sha256(body)
    head = _Head(_FORMAT, item.kind, item.name, digest.hexdigest())
    return msgspec.json.encode(head) + b"\n" + body + b"\n", digest.digest()


def decode(content: bytes, path: Path | str = "an item") -> tuple[Item, Any, bytes]:
    """Return a file's item, value and digest.

    Raises ValueError, or one of JSON_ERRORS; `StateVersionError` for a file of a newer agent.
    """
    first, _, rest = content.partition(b"\n")
    check_version(msgspec.json.decode(first, type=_Format).format, _FORM, path)
    head = msgspec.json.decode(first, type=_Head)
    if not (head.kind in _MODELS or head.kind in KINDS):
        raise ValueError(f"kind {head.kind!r} is not known")
    body = rest.removesuffix(b"\n")
    digest = hashlib.sha256(body)
    if digest.hexdigest() != head.sha256:
        raise ValueError("it does not hold what was written")
    value = msgspec.json.decode(body, type=_MODELS.get(head.kind) or KINDS[head.kind])
    item = Item(head.kind, head.name)
    if _item_of(item.kind, value) != item:
        raise ValueError(f"its first line is of {item}, its content of another item")
    return item, value, digest.digest()


def _item_of(kind: str, value: Any) -> Item:
    if kind in KINDS:
        found: ApiObject = value
        return object_item(object_key(found))
    if isinstance(value, Pod):
        return pod_item(metadata(value).uid or "")
    if isinstance(value, KnownTokens):
        return tokens_item(value.uid)
    return Item(kind, "")


@dataclass(slots=True)
class Folder:
    """The directory. Its methods block; only one caller at a time."""

    path: Path
    digests: dict[Item, bytes] = field(default_factory=dict)  # of the files on disk

    def check(self) -> None:
        """Raise `StateVersionError` if any file is of a newer agent; others are left to `load`."""
        for path in self.path.glob(f"*{_SUFFIX}"):
            if path.is_symlink() or not path.is_file():
                continue  # reading a FIFO would block
            with contextlib.suppress(OSError, *JSON_ERRORS), path.open("rb") as file:
                head = msgspec.json.decode(file.readline(_LONGEST_HEAD), type=_Format)
                check_version(head.format, _FORM, path)

    def load(self) -> dict[Item, Any]:
        """Read all valid items. Raises OSError if the directory is unusable."""
        self.digests = {}
        found: dict[Item, Any] = {}
        if not self.path.exists():
            return found
        with self._opened() as directory:
            for name in sorted(os.listdir(directory)):
                # `.new`: the agent died between write and rename.
                if name.endswith(_NEW) or _is_old_corrupt(directory, name):
                    os.unlink(name, dir_fd=directory)
                elif name.endswith(_SUFFIX):
                    self._load_file(directory, name, found)
        return found

    def _load_file(self, directory: int, name: str, found: dict[Item, Any]) -> None:
        try:
            item, value, digest = decode(_read(directory, name), self.path / name)
            if item.file_name != name:
                raise ValueError(f"it contains {item}, which does not match the file name")
        except StateVersionError:
            raise
        except (OSError, ValueError, *JSON_ERRORS) as exc:
            aside = name + _CORRUPT
            # Kept for diagnosis, and out of the way of the next write.
            os.replace(name, aside, src_dir_fd=directory, dst_dir_fd=directory)
            path, kept = str(self.path / name), str(self.path / aside)
            log.error("offline.corrupt", path=path, kept_as=kept, error=str(exc))
        else:
            found[item], self.digests[item] = value, digest

    def change(self, wanted: Mapping[Item, object], gone: Iterable[Item]) -> int:
        """Write items that differ from the disk, remove those that are gone.

        Returns the number of changed files; without a change the directory is not touched.
        Raises OSError; files changed before it stay changed.
        """
        written: dict[Item, tuple[bytes, bytes]] = {}
        for item, value in wanted.items():
            content, digest = encode(item, value)
            if self.digests.get(item) != digest:
                written[item] = content, digest
        removed = [item for item in gone if item in self.digests]
        if not written and not removed:
            return 0
        # Mode 0700: the files contain secrets and tokens.
        self.path.mkdir(mode=0o700, exist_ok=True)
        with self._opened() as directory:
            for item in removed:
                for name in (item.file_name, item.file_name + _CORRUPT):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
                del self.digests[item]
            for item, (content, digest) in written.items():
                write_aside(item.file_name, content, sync=True, directory=directory)
                self.digests[item] = digest
            # The renames themselves survive a power cut only with this (fsync(2)).
            os.fsync(directory)
        return len(written) + len(removed)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory; it must be this user's, and gets mode 0700. Raises OSError."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory = os.open(self.path, flags)
        try:
            status = os.fstat(directory)
            if status.st_uid != os.geteuid():
                raise PermissionError(f"{self.path} belongs to user {status.st_uid}")
            if stat.S_IMODE(status.st_mode) != 0o700:
                os.fchmod(directory, 0o700)
            yield directory
        finally:
            os.close(directory)


def _is_old_corrupt(directory: int, name: str) -> bool:
    if not name.endswith(_CORRUPT):
        return False
    put_aside = os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime
    return time.time() - put_aside > _CORRUPT_KEPT


def _read(directory: int, name: str) -> bytes:
    # O_NONBLOCK: a FIFO of this name must not block the start; its type is checked below.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        # The files contain secrets and decide what runs: another user must not have written them.
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError(
                f"others may have written it: user {status.st_uid}, "
                f"mode {stat.S_IMODE(status.st_mode):04o}"
            )
        if status.st_size > _LARGEST:
            raise ValueError(f"it has {status.st_size} bytes")
        return file.read()
