"""Files of /proc, as texts, become values. No I/O."""

from __future__ import annotations

from kubelet_trio.stats.usage import Interface

# Interfaces that are not the node's own: cAdvisor leaves out the same.
_IGNORED = ("veth", "docker", "nerdctl")


def parse_meminfo(text: str) -> dict[str, int]:
    """Return /proc/meminfo in bytes (counts of pages as they are)."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if number.isdecimal():
            found[name] = int(number) * (1024 if unit == "kB" else 1)
    return found


def parse_net_dev(text: str) -> tuple[Interface, ...]:
    """Return the interfaces of /proc/<pid>/net/dev, without lo and those to containers."""
    found = []
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        name, words = name.strip(), counters.split()
        if not colon or len(words) < 16 or name == "lo" or name.startswith(_IGNORED):
            continue
        n = [int(word) for word in words]
        found.append(Interface(name, n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11]))
    return tuple(found)


def parse_process_count(loadavg: str) -> int | None:
    """Return how many tasks there are, from /proc/loadavg."""
    parts = loadavg.split()
    count = parts[3].partition("/")[2] if len(parts) > 3 else ""
    return int(count) if count.isdecimal() else None


def parse_boot_time(stat: str) -> float | None:
    """Return when the machine started (Unix seconds), from /proc/stat."""
    for line in stat.splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


def parse_open_files_limit(limits: str) -> int | None:
    """Return the soft limit of open files from /proc/<pid>/limits; -1 for none."""
    for line in limits.splitlines():
        if line.startswith("Max open files"):
            soft = line.removeprefix("Max open files").split()[0]
            return int(soft) if soft.isdecimal() else -1
    return None


def parse_own_cgroup(text: str, version: int) -> str | None:
    """Return a process' cgroup, from /proc/<pid>/cgroup; on version 1 that of `memory`."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (version == 2 and number == "0") or (
            version == 1 and "memory" in controllers.split(",")
        ):
            return path
    return None
