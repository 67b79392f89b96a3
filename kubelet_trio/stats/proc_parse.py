"""Parse files of /proc. No I/O."""

from __future__ import annotations

from kubelet_trio.stats.usage import Interface

MOST_DIGITS = 20  # of a 64-bit number
_USUAL_COUNTERS = 16 * (MOST_DIGITS + 1)  # characters of an interface's line
# Prefixes of interfaces that are not the node's own: isIgnoredDevice in cAdvisor's handler.go.
_IGNORED = ("veth", "docker", "nerdctl")


def to_whole(text: str) -> int | None:
    """Parse a number as the kernel writes it, None for other text."""
    # Bounded: int() of a long text is slow, and beyond 4300 digits a ValueError.
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def parse_meminfo(text: str) -> dict[str, int]:
    """Return /proc/meminfo in bytes (counts of pages as they are)."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if (whole := to_whole(number)) is not None:
            found[name] = whole * (1024 if unit == "kB" else 1)
    return found


def parse_net_dev(text: str) -> tuple[Interface, ...]:
    """Return the interfaces of /proc/<pid>/net/dev, without lo and those to containers."""
    found = []
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        name = name.strip()
        if not colon or name == "lo" or name.startswith(_IGNORED):
            continue
        words = counters.split()
        if len(words) < 16:
            continue
        # Eight columns for receive, then eight for transmit: bytes, packets, errors, dropped, ...
        if len(counters) < _USUAL_COUNTERS and "".join(words).isdecimal():
            n = list(map(int, words))
        else:
            n = [to_whole(word) or 0 for word in words]
        found.append(Interface(name, n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11]))
    return tuple(found)


def parse_process_count(loadavg: str) -> int | None:
    """Return the number of tasks, from /proc/loadavg."""
    # The fourth field is `runnable/total` (proc_loadavg(5)).
    parts = loadavg.split()
    return to_whole(parts[3].partition("/")[2]) if len(parts) > 3 else None


def parse_boot_time(stat: str) -> float | None:
    """Return the boot time (Unix seconds), from /proc/stat."""
    for line in stat.splitlines():
        name, _, seconds = line.partition(" ")
        if name == "btime" and (whole := to_whole(seconds)) is not None:
            return float(whole)
    return None


def parse_open_files_limit(limits: str) -> int | None:
    """Return the soft limit of open files from /proc/<pid>/limits; -1 if unlimited."""
    for line in limits.splitlines():
        if line.startswith("Max open files"):
            soft, _, _ = line.removeprefix("Max open files").strip().partition(" ")
            # The kernel writes `unlimited`, cAdvisor -1 (parseUlimit).
            whole = to_whole(soft)
            return -1 if whole is None else whole
    return None


def parse_state(stat: bytes) -> str:
    """Return the letter of a process' state, from /proc/<pid>/stat; "" if there is none."""
    # The second field, the command in parentheses, may have parentheses and blanks itself.
    return stat.rpartition(b")")[2][1:2].decode("ascii", "replace")


def parse_own_cgroup(text: str, version: int) -> str | None:
    """Return a process' cgroup, from /proc/<pid>/cgroup; on version 1 that of `memory`."""
    for line in text.splitlines():
        # cgroups(7): `id:controllers:path`, and the path itself may have colons.
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (version == 2 and number == "0") or (
            version == 1 and "memory" in controllers.split(",")
        ):
            return path
    return None
