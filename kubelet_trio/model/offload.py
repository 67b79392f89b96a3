"""The seam for blocking work (disk, mounts): threads in the daemon, inline in virtual time.

Trio's autojump clock does not see threads, so a simulation hands every room
`inline_offload` instead of `thread_offload` (model/threads.py).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, runtime_checkable

import trio

P = ParamSpec("P")
T = TypeVar("T")


class Purpose(enum.Enum):
    """What blocking work is for. Work that hangs takes the threads of its purpose, no others."""

    OTHER = "other"
    RECORDS = "records"  # what the agent must remember: pods, ids, the node's shutdown
    PODS = "pods"  # files of pods: hosts, termination messages
    PULLS = "pulls"  # records of image pulls, and logins
    OFFLINE = "offline"
    CERTIFICATES = "certificates"  # and kubeconfigs
    SOURCES = "sources"
    VOLUMES = "volumes"
    VOLUME_STATS = "volume-stats"
    CGROUPS = "cgroups"
    SIGNALS = "signals"  # what eviction decides by
    FILE_SYSTEMS = "file-systems"  # the same, of those that may hang
    USAGE = "usage"  # what eviction ranks by
    STATS = "stats"
    LOGS = "logs"  # those that somebody reads
    GARBAGE = "garbage"  # rotation and removal of logs, room for images
    PROCESSES = "processes"
    RUNTIME = "runtime"  # the process runtime's own files


class Offload(Protocol):
    """Runs a blocking function without stalling the tree; its exceptions come back."""

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


@runtime_checkable
class OffloadByPurpose(Protocol):
    """An offload that keeps purposes apart."""

    def of(self, purpose: Purpose) -> Offload:
        """Return the offload for one purpose."""
        ...


def offload_for(offload: Offload, purpose: Purpose) -> Offload:
    """Return the part of an offload for one purpose; one that knows no purposes serves all."""
    return offload.of(purpose) if isinstance(offload, OffloadByPurpose) else offload


async def inline_offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `fn` here and now: for virtual time, where a thread would not be seen."""
    await trio.lowlevel.checkpoint()
    return fn(*args, **kwargs)
