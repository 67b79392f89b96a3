"""The limits that the kernel has for a pod and its containers, on either version of cgroups.

`Recorder` reads them in a process of its own, as often as it can, while a test changes them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from tests.harness import limit_reader
from tests.harness.cri import CriClient
from tests.harness.leftovers import CGROUPS

V1 = not (CGROUPS / "cgroup.procs").exists()
PERIOD = 100_000  # microseconds, the default of `cpuCFSQuotaPeriod`
_UNITS = {"m": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass(frozen=True, slots=True)
class Limits:
    """CPU shares, the quota in microseconds, memory in bytes; None is no limit."""

    shares: int
    quota: int | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One cgroup: its directory for CPU and its directory for memory."""

    cpu: Path
    memory: Path

    @property
    def parent(self) -> Cgroup:
        return Cgroup(self.cpu.parent, self.memory.parent)

    def limits(self) -> Limits:
        """Return what the kernel has; on version 2 `shares` are the weight."""
        quota, memory = limit_reader.limits(str(self.cpu), str(self.memory))
        weight = (self.cpu / ("cpu.shares" if V1 else "cpu.weight")).read_text()
        return Limits(int(weight), quota, memory)

    def has(self, wanted: Limits) -> bool:
        """Whether the kernel has these limits."""
        found = self.limits()
        same = (found.quota, found.memory) == (wanted.quota, wanted.memory)
        return same and found.shares in _weights(wanted.shares)

    def swap(self) -> int | None:
        """Return the bytes of swap that the cgroup may use; None is no limit."""
        if V1:
            whole = int((self.memory / "memory.memsw.limit_in_bytes").read_text())
            memory = int((self.memory / "memory.limit_in_bytes").read_text())
            return None if whole >= limit_reader.NO_MEMORY_LIMIT else whole - memory
        text = (self.memory / "memory.swap.max").read_text().strip()
        return None if text == "max" else int(text)


def container_cgroup(cri: CriClient, container: str) -> Cgroup:
    """Return where the runtime put a container, as the kernel says."""
    lines = Path(f"/proc/{cri.container_pid(container)}/cgroup").read_text().splitlines()
    places = {
        name: path.lstrip("/")
        for line in lines
        for _, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    if V1:
        return Cgroup(CGROUPS / "cpu" / places["cpu"], CGROUPS / "memory" / places["memory"])
    return Cgroup(CGROUPS / places[""], CGROUPS / places[""])


def cpus_of(text: str) -> frozenset[int]:
    """Read a list of CPUs such as 0-2,5."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def allowed_cpus(pid: int) -> frozenset[int]:
    """Return the CPUs that the kernel lets a process have, by its cpuset."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return cpus_of(fields["Cpus_allowed_list"])


def milli(cpu: str) -> int:
    """Return an amount of CPU in thousandths of a core."""
    return int(cpu.removesuffix("m")) if cpu.endswith("m") else round(float(cpu) * 1000)


def size(memory: str) -> int:
    """Return an amount of memory in bytes."""
    unit = memory.lstrip("0123456789")
    return int(memory.removesuffix(unit)) * (_UNITS[unit] if unit else 1)


def limits_of(request: int, limit: int = 0, memory: int = 0) -> Limits:
    """Return the limits for a CPU request and limit in thousandths, and a memory limit; 0: none."""
    quota = max(limit * PERIOD // 1000, 1000) if limit else None
    return Limits(max(request * 1024 // 1000, 2), quota, memory or None)


def _weights(shares: int) -> set[int]:
    """Return the values that stand for CPU shares in the file of this kernel's version."""
    if V1:
        return {shares}
    # Kubelets use the linear curve for a pod, and runc up to 1.3.1 for a container. Later ones use
    # ceil(10^((l^2 + 125 l) / 612 - 7/34)), l = log2(shares) (opencontainers/cgroups).
    from math import ceil, log2

    curve = log2(shares)
    curved = ceil(10 ** ((curve**2 + 125 * curve) / 612 - 7 / 34)) if shares > 2 else 1
    return {1 + (shares - 2) * 9999 // 262142, curved}


Pair = tuple[int | None, int | None]  # CPU quota and memory


@dataclass(frozen=True, slots=True)
class Sample:
    """The limits of a pod's containers, and the pod's before and after they were read."""

    before: Pair
    containers: dict[str, Pair]  # by the directory's name, with the sandbox's
    after: Pair

    def above(self) -> list[str]:
        """Return the containers that have a larger limit than their pod."""
        # The pod may change while the containers are read: each of its two limits counts.
        return [
            f"{name}: {mine} above {before} and {after}"
            for name, limits in self.containers.items()
            for mine, before, after in zip(limits, self.before, self.after, strict=True)
            if mine is not None and before is not None and after is not None
            if mine > max(before, after)
        ]


class Recorder:
    """Reads the limits of a pod and of what is in it until `stop`, in a process of its own."""

    def __init__(self, pod: Cgroup) -> None:
        self.samples: list[Sample] = []
        self.reads = 0  # how often all limits were read
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", limit_reader.__file__, str(pod.cpu), str(pod.memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the reading; `samples` has what was read, without repetitions."""
        if self._process.returncode is not None:
            return
        told, _ = self._process.communicate(timeout=60)
        self.reads, *found = map(json.loads, told.splitlines())
        self.samples = [
            Sample(_pair(before), {name: _pair(p) for name, p in inside.items()}, _pair(after))
            for before, inside, after in found
        ]

    def above(self) -> list[str]:
        """Return each limit of a container that was ever larger than its pod's."""
        return [problem for sample in self.samples for problem in sample.above()]

    def out_of_order(self) -> list[str]:
        """Return where a container grew before its pod did, or shrank after it.

        For one resize of which all is recorded.
        """
        return [
            f"{kind}: {earlier} then {later}"
            for place, kind in enumerate(("quota", "memory"))
            for earlier, later in pairwise(self.samples)
            if self._is_out_of_order(place, earlier, later)
        ]

    def _is_out_of_order(self, place: int, earlier: Sample, later: Sample) -> bool:
        first, last = self.samples[0].before[place], self.samples[-1].after[place]
        before, after = earlier.before[place], later.after[place]
        if first is None or last is None or before is None or after is None:
            return False
        changes = list(_changes(earlier, later, place))
        # By the end of the later sample the pod has grown; at the start of the earlier it has not
        # yet shrunk.
        grew_first = last > first and after < last and any(now > was for was, now in changes)
        shrank_last = last < first and before < first and any(now < was for was, now in changes)
        return grew_first or shrank_last


def _changes(earlier: Sample, later: Sample, place: int) -> Iterator[tuple[int, int]]:
    """Yield the limits of each container that are not the same in both samples."""
    for name in earlier.containers.keys() & later.containers.keys():
        was, now = earlier.containers[name][place], later.containers[name][place]
        if was is not None and now is not None and was != now:
            yield was, now


def _pair(values: Sequence[int | None]) -> Pair:
    quota, memory = values
    return quota, memory
