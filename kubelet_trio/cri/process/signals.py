"""The signal that asks a container to stop: CRI names it, the kernel numbers it."""

from __future__ import annotations

import re
import signal

from kubelet_trio.cri.generated.runtime import v1

_REAL_TIME = re.compile(r"SIGRT(MIN|MAX)(?:(PLUS|MINUS)(\d+))?")


def stop_signal(config: v1.ContainerConfig) -> int:
    """Return the number of a container's stop signal; SIGTERM where it names none."""
    name = config.stop_signal.name or ""
    if match := _REAL_TIME.fullmatch(name):
        base = signal.SIGRTMIN if match[1] == "MIN" else signal.SIGRTMAX
        offset = int(match[3] or 0)
        return base + (offset if match[2] == "PLUS" else -offset)
    return signal.Signals.__members__.get(name, signal.SIGTERM)
