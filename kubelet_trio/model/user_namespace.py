"""The user namespace of this process: user_namespaces(7)."""

from __future__ import annotations

from pathlib import Path

UID_MAP = Path("/proc/self/uid_map")
_ALL_IDS = ["0", "0", "4294967295"]  # the initial namespace's map


def in_user_namespace(uid_map: Path = UID_MAP) -> bool:
    """Whether this process is in another user namespace than the initial one."""
    try:
        words = uid_map.read_text().split()
    except OSError:
        return False  # a kernel without user namespaces has no map
    # A namespace without a map yet has an empty one.
    return words != _ALL_IDS


def mapped_ids(uid_map: Path = UID_MAP) -> int:
    """Return how many users this process' namespace has; 0 if it cannot be read."""
    try:
        lines = uid_map.read_text().splitlines()
    except OSError:
        return 0
    counts = (line.split()[2:] for line in lines)
    return sum(int(count[0]) for count in counts if count and count[0].isdecimal())
