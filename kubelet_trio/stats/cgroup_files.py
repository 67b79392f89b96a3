"""Read the files of cgroups, and keep them open for the next reading. Everything blocks.

To open and close a file of a cgroup takes the kernel five times as long as to read it, and a node
of 100 pods has 7 000. So for those who ask often the files stay open; each costs the kernel about
4 KiB, hence the limit, and `close`. What has not changed since the last reading is not parsed
again.

A file that is open belongs to its cgroup: if another one of the same name has taken its place, the
kernel answers ENODEV, and it is opened again.

Most containers of a node do nothing between two readings. A cgroup that has used no CPU time and
has the same memory in use gets only those files read that can change without that: no process of it
has run, so that none has begun, ended or asked for memory. What is still wrong then (somebody moved
a sleeping process out) is not for longer than limits are (`KnownLimits`). With that exception the
result is always that of a reading without files kept (`CgroupFiles(host, 0)`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from kubelet_trio.stats import cgroup_parse as parse
from kubelet_trio.stats.disks import Mounts
from kubelet_trio.stats.known_limits import Known, KnownLimits
from kubelet_trio.stats.open_files import USUAL, Host, Room, content
from kubelet_trio.stats.process_files import ProcessFiles
from kubelet_trio.stats.usage import CgroupUsage

_DEPTH = 5  # of the pods' tree: root, QoS class, pod, container, and one of the runtime
_NO_DIRECTORIES = 2  # links of a directory without others in it


# Identity of a directory, and the number of directories in it with two more.
_Seen = tuple[int, int, int]


@dataclass(slots=True)
class _Part:
    """Open files of a directory that are read together."""

    names: tuple[str, ...]
    descriptors: tuple[int, ...]
    found: list[bytes]  # by the last reading


@dataclass(slots=True)
class _Round:
    """What all readings of a directory read, as long as its files and limits are the same ones."""

    always: _Part
    after_run: _Part | None  # if something has run; None: then read all, some of it is not open
    forgotten: int  # of the known limits, when this was planned


@dataclass(slots=True)
class _Directory:
    """A cgroup in one hierarchy."""

    descriptor: int  # of the directory, to open files that were not there before
    files: dict[str, int] = field(default_factory=dict)  # descriptors
    known: Known | None = None  # its limits; None: they are read each time
    rounds: dict[bool, _Round] = field(default_factory=dict)  # of few and of all files


@dataclass(slots=True)
class _Last:
    """Content and usage of the last reading."""

    files: dict[str, bytes]
    usage: CgroupUsage


@dataclass(slots=True)
class _Cgroup:
    """What is kept of one cgroup."""

    round: int = 0  # the last one that read it
    seen: _Seen | None = None
    children: tuple[str, ...] | None = None  # names of the cgroups in it, at `seen`
    directories: dict[str, _Directory] = field(default_factory=dict)  # by controller
    last: dict[bool, _Last] = field(default_factory=dict)  # of few and of all files


class CgroupFiles:
    """Not thread-safe. A reading is `begin`, any number of `walk` and `read`, `end`.

    `processes` are those in the cgroups; their files and the table of `mounts` share the room.
    """

    def __init__(self, host: Host, most: int = 0) -> None:
        """Args:
        host: paths of the kernel's files.
        most: how many files may stay open; 0: none.
        """
        self._host = host
        self._room = Room(most, most)
        self._keeps = most > 0
        self.processes = ProcessFiles(host, self._room)
        self.mounts = Mounts(host, self._room)
        self._limits = KnownLimits(self._room)
        self._cgroups: dict[str, _Cgroup] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}  # of rounds, which share them
        self._round = 0
        self._wanted = {few: tuple(_wanted(host, few)) for few in (False, True)}
        self._witnesses, self._after_run = (
            (parse.WITNESSES_V2, parse.AFTER_RUN_V2)
            if host.version == 2
            else (parse.WITNESSES_V1, parse.AFTER_RUN_V1)
        )

    @property
    def count(self) -> int:
        """How many files and directories are open."""
        return self._room.most - self._room.left

    def begin(self) -> None:
        """Begin a reading."""
        self._round += 1
        self._limits.forget_written()

    def end(self) -> None:
        """Let go of cgroups that this reading did not read."""
        for path in [p for p, c in self._cgroups.items() if c.round != self._round]:
            self._forget(path)

    def close(self) -> None:
        """Let go of everything; the next reading opens its files again."""
        while self._cgroups:
            self._forget(next(iter(self._cgroups)))
        self.processes.close()
        self.mounts.close()
        self._limits.close()

    def walk(self, root: str, depth: int = _DEPTH) -> Iterator[str]:
        """Yield the paths of a cgroup and of those below it, parents first."""
        # On version 1 the pods' tree is the same in every hierarchy.
        base = self._host.mounts.get("" if self._host.version == 2 else "memory")
        if base is None:
            return
        seen = _look(base + root)
        if seen is not None:
            yield from self._walk(base, root, seen, depth)

    def read(self, path: str, everything: bool, now: float) -> CgroupUsage:
        """Read one cgroup; values that cannot be read are None."""
        cgroup = self._cgroup(path)
        cgroup.round = self._round
        last = cgroup.last.get(everything)
        files = {} if last is None else last.files
        changed: set[str] = set()
        more: list[tuple[str, tuple[str, ...], _Part | None]] = []
        for controller, names in self._wanted[everything]:
            planned = _planned(cgroup.directories.get(controller), everything)
            if planned is not None and _read_part(planned.always, files, changed):
                more.append((controller, names, planned.after_run))
            else:
                self._read_all(cgroup, controller, path, everything, names, files, changed)
        if not self._witnesses.isdisjoint(changed) or not self._witnesses <= files.keys():
            for controller, names, part in more:
                if part is None or not _read_part(part, files, changed):
                    self._read_all(cgroup, controller, path, everything, names, files, changed)
        if last is not None and not changed:
            last.usage = last.usage.at(now)
            return last.usage
        parsed = parse.parse_v2 if self._host.version == 2 else parse.parse_v1
        if last is not None:
            last.usage = parsed(files, now, last.usage, changed)
            return last.usage
        usage = parsed(files, now)
        if self._keeps:
            cgroup.last[everything] = _Last(files, usage)
        return usage

    def _forget(self, path: str) -> None:
        for directory in self._cgroups.pop(path).directories.values():
            self._let_go(directory)

    def _walk(self, base: str, root: str, seen: _Seen, depth: int) -> Iterator[str]:
        yield root
        # Two links are the directory's own: then it has none below it, and its files, more than
        # fifty, need not be listed. A file system without such counts shows one link.
        if depth <= 1 or seen[2] == _NO_DIRECTORIES:
            return
        for name, inside in self._children(base, root, seen):
            yield from self._walk(base, name, inside, depth - 1)

    def _children(self, base: str, root: str, seen: _Seen) -> list[tuple[str, _Seen]]:
        """Return paths and identities of the cgroups directly below one, in order."""
        prefix = root.rstrip("/")
        cgroup = self._cgroup(root)
        if cgroup.seen == seen and cgroup.children is not None and seen[2] > _NO_DIRECTORIES:
            # As many as before, and if all of them are still there, then there is no other.
            found = [(p, _look(base + p)) for p in (f"{prefix}/{n}" for n in cgroup.children)]
            there = [(path, inside) for path, inside in found if inside is not None]
            if len(there) == len(found) == seen[2] - _NO_DIRECTORIES:
                return there
        # A cgroup can be removed between its parent's listing and its own.
        try:
            with os.scandir(base + root) as entries:
                names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        except OSError:
            names = []
        cgroup.seen, cgroup.children = seen, tuple(sorted(names))
        found = [(p, _look(base + p)) for p in (f"{prefix}/{n}" for n in cgroup.children)]
        return [(path, inside) for path, inside in found if inside is not None]

    def _cgroup(self, path: str) -> _Cgroup:
        cgroup = self._cgroups.get(path)
        if cgroup is None:
            cgroup = _Cgroup(self._round)
            if self._keeps:
                self._cgroups[path] = cgroup
        return cgroup

    def _read_all(
        self,
        cgroup: _Cgroup,
        controller: str,
        path: str,
        everything: bool,
        names: tuple[str, ...],
        files: dict[str, bytes],
        changed: set[str],
    ) -> None:
        """Read files of one controller; note what has changed in `files` and `changed`."""
        found: dict[str, bytes] = {}
        self._read_into(found, cgroup, controller, path, names)
        _compare(names, found, files, changed)
        directory = cgroup.directories.get(controller)
        if directory is not None:
            self._plan_round(directory, everything, names, found)

    def _read_into(
        self,
        files: dict[str, bytes],
        cgroup: _Cgroup,
        controller: str,
        path: str,
        names: tuple[str, ...],
    ) -> None:
        directory = cgroup.directories.get(controller)
        if directory is not None:
            try:
                self._read_files(files, directory, names)
                return
            except OSError:
                # ENODEV: the cgroup was removed, and perhaps made again.
                files.clear()
                self._let_go(cgroup.directories.pop(controller))
        directory = _open_directory(self._host.mounts[controller] + path)
        if directory is None:
            return
        # Only together: some files of a cgroup that stay open do not help the others.
        if self._room.left > len(names):
            self._room.left -= 1
            cgroup.directories[controller] = directory
            directory.known = self._limits.watch(directory.descriptor)
            self._read_files(files, directory, names)
            return
        try:
            for name in names:
                self._read_file(files, directory, name, keep=False)
        finally:
            os.close(directory.descriptor)

    def _read_files(
        self, files: dict[str, bytes], directory: _Directory, names: tuple[str, ...]
    ) -> None:
        """Read files of a cgroup. Raises OSError if one that is open cannot be read any more."""
        kept = directory.files
        limits = {} if directory.known is None else directory.known.contents
        for name in names:
            if name in kept:
                files[name] = content(kept[name])
            elif name in limits:
                if (known := limits[name]) is not None:
                    files[name] = known
            else:
                self._read_new(files, directory, name)
        if not kept and directory.known is not None:
            directory.known.forget()  # nothing that is open tells when another one has its place

    def _read_new(self, files: dict[str, bytes], directory: _Directory, name: str) -> None:
        """Read a file that is not open, if that can be."""
        known = directory.known
        is_limit = known is not None and name in parse.LIMITS
        is_there = self._read_file(files, directory, name, keep=not is_limit)
        # A file that is not there comes with a write to the cgroup above or to this one.
        if known is not None and (not is_there or (is_limit and name in files)):
            known.contents[name] = files.get(name)

    def _read_file(
        self, files: dict[str, bytes], directory: _Directory, name: str, *, keep: bool
    ) -> bool:
        """Open a file and read it; keep it open if there is room. Return whether it is there."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory.descriptor)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            files[name] = content(descriptor)
        except OSError:
            # For example ENODEV: the cgroup was removed after the open.
            os.close(descriptor)
            return True
        # Version 1 may answer from a list of processes that is a second old, but never at first.
        if keep and self._room.left > 0 and (self._host.version == 2 or name != "cgroup.procs"):
            self._room.left -= 1
            directory.files[name] = descriptor
        else:
            os.close(descriptor)
        return True

    def _plan_round(
        self,
        directory: _Directory,
        everything: bool,
        names: tuple[str, ...],
        found: dict[str, bytes],
    ) -> None:
        """Let the next reading of a directory read what is open, if all else is known."""
        kept, known = directory.files, directory.known
        # A write to the directory may be of a process that was moved there: it has not run yet.
        after_run = self._after_run if known is not None else frozenset[str]()
        lacking = [
            name
            for name in names
            if name not in kept and (known is None or name not in known.contents)
        ]
        if not kept or not after_run.issuperset(lacking):
            return
        there = [name for name in names if name in kept]
        directory.rounds[everything] = _Round(
            self._part(directory, [name for name in there if name not in after_run], found),
            None
            if lacking
            else self._part(directory, [name for name in there if name in after_run], found),
            0 if known is None else known.forgotten,
        )

    def _part(self, directory: _Directory, wanted: list[str], found: dict[str, bytes]) -> _Part:
        names = tuple(wanted)
        return _Part(
            self._names.setdefault(names, names),
            tuple(directory.files[name] for name in names),
            [found[name] for name in names],
        )

    def _let_go(self, directory: _Directory) -> None:
        if directory.known is not None:
            self._limits.unwatch(directory.known)
        for descriptor in (*directory.files.values(), directory.descriptor):
            os.close(descriptor)
            self._room.left += 1


def _planned(directory: _Directory | None, everything: bool) -> _Round | None:
    """Return what a reading of a directory has to read; None: everything."""
    planned = None if directory is None else directory.rounds.get(everything)
    if planned is None or directory is None or directory.known is None:
        return planned
    return planned if planned.forgotten == directory.known.forgotten else None


def _read_part(part: _Part, files: dict[str, bytes], changed: set[str]) -> bool:
    """Read files that are open; note what has changed in `files` and `changed`.

    Returns False if they belong to a cgroup that has been removed.
    """
    pread = os.pread
    try:
        # `content` of each; its call takes as long as some of the files take the kernel.
        found = [pread(descriptor, USUAL, 0) for descriptor in part.descriptors]
        if USUAL in map(len, found):
            found = [content(descriptor) for descriptor in part.descriptors]
    except OSError:
        return False  # ENODEV
    if found != part.found:
        for name, now, before in zip(part.names, found, part.found, strict=True):
            if now != before:
                changed.add(name)
                files[name] = now
        part.found = found
    return True


def _compare(
    names: tuple[str, ...], found: dict[str, bytes], files: dict[str, bytes], changed: set[str]
) -> None:
    """Note in `files` what was found of `names`, and in `changed` what was not so before."""
    for name in names:
        now = found.get(name)
        if now != files.get(name):
            changed.add(name)
            if now is None:
                del files[name]
            else:
                files[name] = now


def _wanted(host: Host, everything: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield controllers, and the files in their directories that are to be read."""
    if host.version == 2:
        yield "", parse.ALL_FILES_V2 if everything else parse.FILES_V2
        return
    for controller, names in (parse.ALL_FILES_V1 if everything else parse.FILES_V1).items():
        if controller in host.mounts:
            yield controller, names


def _look(path: str) -> _Seen | None:
    """Return what tells a directory from another one; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_nlink) if stat.S_ISDIR(found.st_mode) else None


def _open_directory(path: str) -> _Directory | None:
    # By its descriptor the kernel resolves the path once, and not for each file.
    try:
        return _Directory(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return None
