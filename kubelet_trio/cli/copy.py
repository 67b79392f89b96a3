"""`kubelet-trio cp`: files to and from a container, as tar archives through its `tar` command.

As kubectl does it: what comes from a container may not leave the target, and its links are not
made. Source: copyFromPod, untarAll and copyToPod in k8s.io/kubectl/pkg/cmd/cp.
"""

from __future__ import annotations

import glob
import os
import posixpath
import shutil
import tarfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import click

from kubelet_trio.cli import exec as executing
from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.exec import Ends

Path = tuple[str, str, str]  # namespace, pod, container
_SHOWN = 4096  # bytes of tar's own words in an error


class Place(NamedTuple):
    """One side of a copy; `pod` is empty for this machine."""

    pod: str
    path: str


def parse_place(text: str) -> Place:
    """Return the place of `[NAMESPACE/]POD:PATH` or `PATH`. Raises `ClientError`.

    As kubectl: a path with a colon begins with `/` or `./`.
    """
    pod, colon, path = text.partition(":")
    if not colon or text.startswith(("/", ".")):
        return Place("", text)
    if not pod:
        raise ClientError(f'"{text}": write POD:PATH, or ./{text} for a file of this name')
    if not path:
        raise ClientError(f'"{text}": the path in the pod is missing, as in {pod}:/tmp/file')
    return Place(pod, path)


def from_pod(agent: AgentClient, path: Path, remote: str, local: str) -> None:
    """Copy a file or directory of a container to this machine. Raises `ClientError`."""
    prefix = _stripped(remote)
    reader, writer = os.pipe()
    taking = _Worker(partial(_untar, reader, prefix, local))
    said = bytearray()

    def take(content: bytes) -> None:
        while content:
            content = content[os.write(writer, content) :]

    try:
        code = executing.run_between(
            agent, path, ["tar", "cf", "-", remote], Ends(None, take, said.extend)
        )
    except BrokenPipeError:
        code = 0  # the other side has a better reason
    finally:
        os.close(writer)
        taking.join()
    _check_tar(code, said, path)
    taking.check()


def to_pod(
    agent: AgentClient, path: Path, local: str, remote: str, *, keeps_owner: bool = True
) -> None:
    """Copy a file or directory of this machine into a container. Raises `ClientError`."""
    sources = sorted(glob.glob(local)) or [local]
    for source in sources:
        if not os.path.lexists(source):
            raise ClientError(f"{source} does not exist here")
    remote = remote.rstrip("/") or "/"
    said = bytearray()
    quiet = Ends(None, said.extend, said.extend)
    if executing.run_between(agent, path, ["test", "-d", remote], quiet) == 0:
        base = os.path.basename(os.path.normpath(os.path.abspath(local)))
        names = [os.path.basename(s.rstrip("/")) or base for s in sources]
        pairs = [(s, posixpath.join(remote, n)) for s, n in zip(sources, names, strict=True)]
    elif len(sources) > 1:
        raise ClientError(f"{local} means {len(sources)} files, and {remote} is no directory")
    else:
        pairs = [(sources[0], remote)]
    above = posixpath.dirname(pairs[0][1])
    command = ["tar", *([] if keeps_owner else ["--no-same-permissions", "--no-same-owner"])]
    command += ["-xmf", "-", *(["-C", above] if above else [])]
    named = [(source, posixpath.basename(target)) for source, target in pairs]
    reader, writer = os.pipe()
    giving = _Worker(partial(_tar, writer, named))
    said.clear()
    try:
        code = executing.run_between(agent, path, command, Ends(reader, said.extend, said.extend))
    finally:
        os.close(reader)
        giving.join()
    giving.check()
    _check_tar(code, said, path)


class _Worker:
    """A thread that is one end of a pipe; `check` raises what it raised."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except (OSError, tarfile.TarError, ClientError) as exc:
            self._problem = exc

    def join(self) -> None:
        self._thread.join()

    def check(self) -> None:
        """Raise `ClientError` if the work failed."""
        problem = self._problem
        if isinstance(problem, OSError) and not isinstance(problem, BrokenPipeError):
            raise ClientError(f"{problem.filename or 'copying'}: {problem.strerror}") from problem
        if isinstance(problem, tarfile.TarError):
            raise ClientError(f"the container's tar sent no valid archive: {problem}") from problem
        if isinstance(problem, ClientError):
            raise problem


def _check_tar(code: int, said: bytearray, path: Path) -> None:
    if code in (126, 127):
        raise ClientError(f'container "{path[2]}" has no tar command, which cp needs')
    if code:
        text = bytes(said[:_SHOWN]).decode("utf-8", "replace").strip()
        raise ClientError(text or f"tar ended with exit code {code} in container {path[2]}")
    # Both GNU's and BusyBox's tar say for every absolute path that they remove its first slash.
    for line in bytes(said).splitlines():
        if b"removing leading" not in line.lower():
            click.echo(line, err=True)


def _stripped(remote: str) -> str:
    """Return the name that a path has in its archive: without `/` in front and leading `../`."""
    clean = posixpath.normpath(remote.lstrip("/")) if remote.strip("/") else ""
    parts = [p for p in clean.split("/") if p != "."]
    while parts and parts[0] == "..":
        parts.pop(0)
    return "/".join(parts)


def _untar(reader: int, prefix: str, target: str) -> None:
    """Write an archive's files below `target`, each at its path without `prefix`."""
    target = os.path.normpath(target)
    has_warned = False
    with (
        os.fdopen(reader, "rb") as pipe,
        tarfile.open(fileobj=pipe, mode="r|", errorlevel=1) as archive,
    ):
        for member in archive:
            name = posixpath.normpath(member.name.lstrip("/"))
            if name != prefix and not name.startswith(f"{prefix}/" if prefix else ""):
                raise ClientError(f'the archive has "{member.name}", which is not below "{prefix}"')
            place = _place(target, name[len(prefix) :].lstrip("/"))
            if place is None:
                _warn(f'file "{member.name}" is outside the target, skipped')
            elif member.isdir():
                os.makedirs(place, exist_ok=True)
            elif member.isreg():
                # A directory's content goes into the target, a single file below its own name.
                if place == target and os.path.isdir(target):
                    place = os.path.join(target, posixpath.basename(prefix))
                _write(archive, member, place)
            else:
                hint = "" if has_warned else "; `exec ... -- tar cf - PATH | tar xf -` keeps links"
                kind = "symlink" if member.issym() else "link or special file"
                _warn(f'skipping {kind} "{member.name}"{hint}')
                has_warned = True
        # Otherwise tar would get a closed pipe for the padding behind the archive's end.
        while pipe.read(65536):
            pass


def _place(target: str, name: str) -> str | None:
    """Return the path below `target`; None if the name leads out of it."""
    place = os.path.normpath(os.path.join(target, name)) if name not in ("", ".") else target
    inside = place == target or place.startswith(os.path.join(target, ""))
    if target == ".":
        inside = not os.path.isabs(name) and not place.startswith("..")
    return place if inside else None


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, place: str) -> None:
    source = archive.extractfile(member)
    assert source is not None, member.name
    if above := os.path.dirname(place):
        os.makedirs(above, exist_ok=True)
    with source, open(place, "wb") as file:
        shutil.copyfileobj(source, file)


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def _tar(writer: int, named: Sequence[tuple[str, str]]) -> None:
    """Write an archive of local paths, each under its new name."""
    with os.fdopen(writer, "wb") as pipe, tarfile.open(fileobj=pipe, mode="w|") as archive:
        for source, name in named:
            archive.add(source, arcname=name)
