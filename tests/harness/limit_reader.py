"""Reads limits of cgroups; as a program, all of a pod's, again and again until stdin ends.

It prints `ready`, and at the end the number of readings and one JSON line for each reading that
differs from the one before: the pod's limits, its containers' by name, the pod's once more.
It imports nothing of the project, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import select
import sys

NO_MEMORY_LIMIT = 1 << 62  # version 1 shows "none" as a number above this


def limits(cpu: str, memory: str) -> tuple[int | None, int | None]:
    """Return CPU quota in microseconds and memory in bytes; None is no limit."""
    if os.path.exists(f"{cpu}/cpu.cfs_quota_us"):
        quota, most = _read(f"{cpu}/cpu.cfs_quota_us"), _read(f"{memory}/memory.limit_in_bytes")
    else:
        quota, most = _read(f"{cpu}/cpu.max").split()[0], _read(f"{memory}/memory.max")
    bytes_ = None if most == "max" or int(most) >= NO_MEMORY_LIMIT else int(most)
    return None if quota in ("max", "-1") else int(quota), bytes_


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 100).decode().strip()
    finally:
        os.close(fd)


def reading(cpu: str, memory: str) -> list[object]:
    """Return the pod's limits, its containers', and the pod's once more."""
    before = limits(cpu, memory)
    inside = {}
    for entry in os.scandir(cpu):
        if entry.is_dir(follow_symlinks=False):
            try:
                inside[entry.name] = limits(entry.path, f"{memory}/{entry.name}")
            except OSError:
                continue  # it is being made or removed
    return [before, inside, limits(cpu, memory)]


def main(cpu: str, memory: str) -> None:
    """Read until stdin ends."""
    found = [reading(cpu, memory)]
    count = 1
    print("ready", flush=True)
    is_over = False
    while not is_over:
        is_over = bool(select.select([sys.stdin], [], [], 0)[0])  # and then once more
        seen = reading(cpu, memory)
        count += 1
        if seen != found[-1]:
            found.append(seen)
    print(count)
    for one in found:
        print(json.dumps(one))


if __name__ == "__main__":
    main(*sys.argv[1:])
