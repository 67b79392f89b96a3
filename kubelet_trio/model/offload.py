"""The seam for blocking work (disk, mounts): threads in the daemon, inline in virtual time.

Trio's autojump clock ignores threads, so simulations pass `inline_offload` to every room instead
of `thread_offload` (model/threads.py).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, runtime_checkable

import trio

P = ParamSpec("P")
T = TypeVar("T")


class Purpose(enum.Enum):
    """The purpose of blocking work. Work that hangs only blocks threads of its own purpose."""

    OTHER = "other"
    RECORDS = "records"  # persistent state: pods, ids, the node's shutdown
    PODS = "pods"  # files of pods: hosts, termination messages
    PULLS = "pulls"  # records of image pulls, and credentials
    OFFLINE = "offline"
    CERTIFICATES = "certificates"  # and kubeconfigs
    SOURCES = "sources"
    VOLUMES = "volumes"
    DEVICES = "devices"  # programs of the host, and disks of a network: any may hang for minutes
    VOLUME_STATS = "volume-stats"
    CGROUPS = "cgroups"
    SIGNALS = "signals"  # eviction signals
    FILE_SYSTEMS = "file-systems"  # eviction signals of file systems, which may hang
    USAGE = "usage"  # usage of pods, for ranking in eviction
    STATS = "stats"
    LOGS = "logs"  # reading logs for a client
    GARBAGE = "garbage"  # rotation and removal of logs, disk usage for image GC
    PROCESSES = "processes"
    PLUGINS = "plugins"  # the directory of their sockets
    RECORDER = "recorder"  # the ring of the flight recorder
    RUNTIME = "runtime"  # the process runtime's own files


class Offload(Protocol):
    """Runs a blocking function without blocking the event loop; its exceptions are raised."""

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


@runtime_checkable
class OffloadByPurpose(Protocol):
    """An offload that separates purposes."""

    def of(self, purpose: Purpose) -> Offload:
        """Return the offload for one purpose."""
        ...


def offload_for(offload: Offload, purpose: Purpose) -> Offload:
    """Return an offload for one purpose: the offload itself if it does not separate them."""
    return offload.of(purpose) if isinstance(offload, OffloadByPurpose) else offload


async def inline_offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `fn` in the calling task: for virtual time, which ignores threads."""
    # As with a thread: other tasks run first, and a cancellation is raised here.
    await trio.lowlevel.checkpoint()
    return fn(*args, **kwargs)
