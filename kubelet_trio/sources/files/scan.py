"""Lists the manifest path once, and reads a manifest file once: blocking, stateless."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import WatchPoints, read_start
from kubelet_trio.objects import ApiObject
from kubelet_trio.sources.errors import FieldError, ManifestError
from kubelet_trio.sources.manifest.decode import MAX_MANIFEST_SIZE
from kubelet_trio.sources.manifest.identity import IsKnown, none_known
from kubelet_trio.sources.manifest.load import load_manifest

# Of editors, patch(1), dpkg and rpm. The Go kubelet ignores only hidden names
# (extractFromDir in pkg/kubelet/config/file.go), and reads a backup as a manifest.
_LEFTOVERS = (
    "~",
    ".swp",
    ".swo",
    ".swx",
    ".tmp",
    ".temp",
    ".part",
    ".bak",
    ".orig",
    ".rej",
    ".dpkg-new",
    ".dpkg-old",
    ".dpkg-dist",
    ".dpkg-tmp",
    ".rpmnew",
    ".rpmsave",
    ".rpmorig",
)
_MAX_LINKS = 40  # the kernel's own limit (MAXSYMLINKS, path_resolution(7))


def is_ignored(name: str) -> bool:
    """Return whether a name in the manifest directory is not a manifest's.

    Ignored: hidden names (`.web.yaml.swp`, a ConfigMap volume's `..data`), leftovers of editors
    and package managers (`web.yaml~`, `#web.yaml#`, the suffixes above), and digits only.
    """
    leftover = name.endswith(_LEFTOVERS) or (name.startswith("#") and name.endswith("#"))
    # Digits only: vim creates and removes a file `4913` to test whether it may write here.
    return name.startswith(".") or leftover or name.isdigit()


class Signature(NamedTuple):
    """Changes when a file's content may have changed."""

    mtime_ns: int
    # cp -p and tar set the mtime back; no program can set the ctime (utimensat(2)).
    ctime_ns: int
    size: int
    inode: int
    device: int


class PathKind(Enum):
    DIRECTORY = "directory"
    FILE = "file"
    MISSING = "missing"  # its parent directory exists
    # More likely a missing mount than a removal.
    PARENT_MISSING = "parent missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """The result of one scan. Keys are paths, in lexical order."""

    kind: PathKind
    files: Mapping[str, Signature] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)  # path to why it cannot be read
    watch: WatchPoints = field(default_factory=dict)
    why: str = ""  # of an unreadable path


def scan(path: str) -> DirectoryListing:
    """List the manifests at a path: the file itself, or the files of the directory."""
    points = _path_points(path)
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            files, broken = _sort([path])
            return DirectoryListing(PathKind.FILE, files, broken, points)
        with os.scandir(path) as entries:
            names = sorted(e.name for e in entries if not is_ignored(e.name))
    except FileNotFoundError:
        has_parent = os.path.isdir(os.path.dirname(path))
        kind = PathKind.MISSING if has_parent else PathKind.PARENT_MISSING
        return DirectoryListing(kind, watch=points)
    except OSError as exc:
        return DirectoryListing(PathKind.UNREADABLE, watch=points, why=exc.strerror or str(exc))
    paths = [os.path.join(path, name) for name in names]
    files, broken = _sort(paths)
    points[path] = None
    for each in paths:
        for directory, name in _links(each):
            _add(points, directory, name)
    return DirectoryListing(PathKind.DIRECTORY, files, broken, points)


def _sort(paths: list[str]) -> tuple[dict[str, Signature], dict[str, str]]:
    files, broken = {}, {}
    for path in paths:
        if not _is_utf8(path):
            broken[path] = "the file's name is no UTF-8, as that of a manifest must be: rename it"
            continue
        try:
            found = os.stat(path)
        except OSError as exc:
            if os.path.islink(path):
                broken[path] = f"the link leads nowhere: {exc.strerror}"
            elif exc.errno != errno.ENOENT:
                broken[path] = str(exc.strerror)
            continue  # ENOENT: it was removed since the directory was listed
        # os.stat follows links: a FIFO, socket or device behind one is refused as well.
        if stat.S_ISREG(found.st_mode):
            files[path] = _signature(found)
        elif not stat.S_ISDIR(found.st_mode):
            broken[path] = "not a regular file"
    return files, broken


def _is_utf8(path: str) -> bool:
    """Return whether a path is valid Unicode, as annotations and statuses have to be."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _signature(found: os.stat_result) -> Signature:
    return Signature(
        found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev
    )


def _path_points(path: str) -> dict[str, frozenset[str] | None]:
    """Return where a change of what `path` resolves to shows: at each link on the way.

    In place of a missing directory, the nearest existing one above it is watched.
    """
    points: dict[str, frozenset[str] | None] = {}
    last = path
    _add(points, *_nearest(path))
    for directory, name in _links(path):
        last = os.path.join(directory, name)
        _add(points, *_nearest(last))
    return points


def _nearest(path: str) -> tuple[str, str]:
    directory, name = os.path.split(path)
    while not os.path.isdir(directory) and directory != "/":
        directory, name = os.path.split(directory)
    return directory, name


def _links(path: str) -> Iterator[tuple[str, str]]:
    """Yield directory and name of each target along a chain of symbolic links."""
    for _ in range(_MAX_LINKS):
        try:
            target = os.readlink(path)
        except OSError:
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), target))
        yield os.path.split(path)


def _add(points: dict[str, frozenset[str] | None], directory: str, name: str) -> None:
    known = points.get(directory, frozenset())
    points[directory] = None if known is None else known | {name}


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file's content: pods and objects, or the error why there are none."""

    signature: Signature
    pods: tuple[Pod, ...] = ()
    error: ManifestError | None = None
    objects: tuple[ApiObject, ...] = ()


def read_manifest(
    path: str, node_name: str, is_known: IsKnown = none_known, local_claims: bool = True
) -> FileRead | None:
    """Read and load one file; return None if it changed meanwhile.

    The other arguments are those of `load_manifest`.

    Raises OSError if it cannot be read.
    """
    # O_NONBLOCK: if the name is a FIFO by now, open(2) must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb"):
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            return None
        data = read_start(descriptor, MAX_MANIFEST_SIZE + 1)
        # Written while it was read: the content may be a mixture of old and new.
        if _signature(os.fstat(descriptor)) != _signature(before):
            return None
    signature = _signature(before)
    try:
        manifest = load_manifest(
            data, path, node_name=node_name, is_known=is_known, local_claims=local_claims
        )
    except ManifestError as exc:
        return FileRead(signature, error=exc)
    return FileRead(signature, manifest.pods, objects=manifest.objects)


def read_manifests(
    paths: Iterable[str],
    node_name: str,
    is_known: IsKnown = none_known,
    local_claims: bool = True,
) -> dict[str, FileRead | ManifestError | None]:
    """Read files one after the other; return contents, or the error of an unreadable file.

    None is returned for a file that changed meanwhile or was removed. The other arguments are
    those of `load_manifest`.
    """
    results: dict[str, FileRead | ManifestError | None] = {}
    for path in paths:
        try:
            results[path] = read_manifest(path, node_name, is_known, local_claims)
        except FileNotFoundError:
            results[path] = None
        except OSError as exc:
            reason = f"cannot be read: {exc.strerror or exc}"
            results[path] = ManifestError(path, [FieldError("", reason)])
    return results
