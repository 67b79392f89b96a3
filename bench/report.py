"""Results beside the Go kubelet's, and the machine that they were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

# The Go kubelet 1.36, on a machine with 2 cores and the same containerd.
GO_KUBELET = {
    "30 pods Ready s": 6.7,
    "30 pods Ready, CPU s": 0.82,
    "idle CPU, 30 pods %": 1.9,
    "RSS, 30 pods MB": 83.0,
    "RSS, no pod MB": 70.0,
    "one pod, file to started s": 0.22,
    "killed container started s": 0.29,
    "30 pods removed s": 3.8,
}

# What this agent is held to.
LIMITS = {
    "30 pods Ready s": 6.7,
    "30 pods Ready, CPU s": 2.0,
    "idle CPU, 30 pods %": 1.5,
    "RSS, 30 pods MB": 55.0,
    "killed container started s": 0.2,
}


def machine() -> dict[str, str]:
    """Describe what the numbers depend on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()[1]
    return {
        "cpu": f"{os.cpu_count()} x {models[0] if models else platform.machine()}",
        "memory": f"{int(memory) / 1e6:.0f} GB",
        "kernel": platform.release(),
        "cgroups": "v2" if Path("/sys/fs/cgroup/cgroup.procs").exists() else "v1",
        "containerd": _version("containerd"),
        "runc": _version("runc"),
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def table(results: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| measured | here | Go kubelet | ratio | limit |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, value in results.items():
        go, limit = GO_KUBELET.get(name), LIMITS.get(name)
        ratio = "" if go is None else f"{value / go:.2f}"
        met = "" if limit is None else f"{limit:g}{'' if value <= limit else ' (missed)'}"
        yield f"| {name} | {value:.2f} | {'' if go is None else f'{go:g}'} | {ratio} | {met} |"


def _version(program: str) -> str:
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return next(word for word in shown.stdout.split() if word[0].isdigit())
