"""Writes the managers' states to their checkpoint files.

Admission changes states in memory and never waits for the disk. This task writes the newest state
of each file; changes during a write are written together. A pod with a share waits with
`wait_kept` until its share is on disk, and only then gets its first container. A disk that refuses
or hangs therefore delays no pod without a share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import trio
from trio_util import AsyncValue

from kubelet_trio.managers.shares import CheckpointError
from kubelet_trio.model import Bell, Offload, get_logger, sync_directory, write_aside

log = get_logger()

_RETRY = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class _Progress:
    """What is on disk: all changes up to `version`; and how the last write failed, if it did."""

    version: int = 0
    failures: int = 0
    problem: str = ""


class CheckpointKeeper:
    """The checkpoint files below one directory. `put` and `version` never block."""

    def __init__(
        self,
        directory: Path,
        offload: Offload,
        on_put: Callable[[str, Callable[[], bytes]], None] = lambda _file, _encode: None,
    ) -> None:
        """Args:
        directory: the kubelet's root directory.
        offload: that of its records.
        on_put: is told of each `put`, with its arguments.
        """
        self._directory = directory
        self._offload = offload
        self._version = 0
        self._on_put = on_put
        self._wanted: dict[str, Callable[[], bytes]] = {}
        self._changed = Bell()
        self._progress = AsyncValue(_Progress())

    @property
    def version(self) -> int:
        """The number of changes so far; `wait_kept` takes it."""
        return self._version

    @property
    def kept(self) -> int:
        """The number of changes that are on disk."""
        progress: _Progress = self._progress.value
        return progress.version

    def put(self, file: str, encode: Callable[[], bytes]) -> None:
        """Write a file soon.

        Args:
            file: its path below the directory.
            encode: returns its content; called in a thread.
        """
        self._version += 1
        self._wanted[file] = encode
        self._on_put(file, encode)
        self._changed.ring()

    async def wait_kept(self, version: int) -> None:
        """Wait until the changes up to `version` are on disk.

        Raises `CheckpointError` when a write has failed since the call. It is retried: call again.
        """
        failures = self._progress.value.failures
        done: _Progress = await self._progress.wait_value(
            lambda now: now.version >= version or now.failures > failures
        )
        if done.version < version:
            raise CheckpointError(done.problem)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what was put, until cancelled."""
        task_status.started()
        while True:
            self._changed.clear()
            if self._wanted:
                await self._write()
            with trio.move_on_after(_RETRY if self._wanted else math.inf):
                await self._changed.wait_ring()

    async def _write(self) -> None:
        version, batch = self._version, dict(self._wanted)
        was: _Progress = self._progress.value
        try:
            await self._offload(_write_checkpoints, self._directory, batch)
        except OSError as exc:
            problem = f"cannot write the managers' checkpoints: {exc}"
            if problem != was.problem:
                log.warning("managers.checkpoint_failed", error=str(exc), retry_in=_RETRY)
            self._progress.value = replace(was, failures=was.failures + 1, problem=problem)
            return
        if was.problem:
            log.info("managers.checkpoint_written")
        for file, encode in batch.items():
            if self._wanted[file] is encode:
                del self._wanted[file]
        self._progress.value = _Progress(version, was.failures)


def _write_checkpoints(directory: Path, batch: Mapping[str, Callable[[], bytes]]) -> None:
    for file, encode in batch.items():
        path = directory / file
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        # Synced, as the Go kubelet's checkpoints: they outlive the machine's reboot there too.
        write_aside(path, encode(), sync=True)
        sync_directory(path.parent)
