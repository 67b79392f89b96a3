"""Which files of a log are removed, compressed and kept: decisions from names alone.

The names are the Go kubelet's, so that either agent goes on where the other stopped, and log
collectors find what they know (pkg/kubelet/logs/container_log_manager.go):

    0.log                       what the container writes now
    0.log.20240501-101112       rotated last; whole, so that who reads it can finish
    0.log.20240501-090000.gz    rotated before that, compressed
    0.log.20240501-090000.tmp   being compressed; of no use if nobody is at it
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

STAMP = "%Y%m%d-%H%M%S"
COMPRESSED = ".gz"
TEMPORARY = ".tmp"
# What the file that is about to be rotated, and the new one, take of the files to be kept.
_LATEST_AND_NEW = 2


@dataclass(frozen=True, slots=True)
class RotationPlan:
    """What is done to the rotated files of one log before its latest is rotated, in order."""

    remove: tuple[str, ...] = ()
    compress: tuple[str, ...] = ()


def plan_rotation(log: str, names: Iterable[str], max_files: int) -> RotationPlan:
    """Return what to do with the rotated files of `log` among the names beside it.

    Removed is what a crash left half done (temporary files, and originals whose compressed
    form is there) and what is too old: `max_files` counts the live log and the one that is
    about to be rotated.
    """
    rotated = {name for name in names if name.startswith(f"{log}.")}
    unused = sorted(name for name in rotated if not _is_in_use(name, rotated))
    used = sorted(rotated.difference(unused))
    surplus = max(len(used) - max(max_files - _LATEST_AND_NEW, 0), 0)
    return RotationPlan(
        (*unused, *used[:surplus]),
        tuple(name for name in used[surplus:] if not name.endswith(COMPRESSED)),
    )


def _is_in_use(name: str, rotated: Collection[str]) -> bool:
    if name.endswith(TEMPORARY):
        return False
    return name.endswith(COMPRESSED) or name + COMPRESSED not in rotated


def rotated_name(log: str, names: Iterable[str], now: datetime.datetime) -> str:
    """Return the name that the latest log gets at `now` (the node's own time).

    It sorts after all that are there, whatever the clock did: order is age, and two rotations
    within a second, or the hour that comes twice in autumn, must not overwrite or confuse.
    """
    latest = max(filter(None, (_stamp(log, name) for name in names)), default=None)
    moment = now.replace(microsecond=0, tzinfo=None)
    if latest is not None and moment <= latest:
        with suppress(OverflowError):  # no rotation has made a name of the year 9999
            moment = latest + datetime.timedelta(seconds=1)
    return f"{log}.{moment.strftime(STAMP)}"


def _stamp(log: str, name: str) -> datetime.datetime | None:
    if not name.startswith(f"{log}."):
        return None
    text = name.removeprefix(f"{log}.").removesuffix(TEMPORARY).removesuffix(COMPRESSED)
    try:
        return datetime.datetime.strptime(text, STAMP)
    except ValueError:
        return None
