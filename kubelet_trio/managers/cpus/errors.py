"""What the CPU manager raises.

CpuManagerError
├── CpuConfigError      options or reservation that this machine cannot have: the agent cannot start
├── CpuCheckpointError  a state file that does not fit: the agent cannot start; the message says how
└── NotEnoughCpusError  too few free CPUs: the pod is refused
"""

from __future__ import annotations


class CpuManagerError(Exception):
    """The base of the CPU manager's errors."""


class CpuConfigError(CpuManagerError):
    """The configuration does not fit together, or not on this machine."""


class CpuCheckpointError(CpuManagerError):
    """A state file is damaged, or of another policy or machine."""


class NotEnoughCpusError(CpuManagerError):
    """Fewer CPUs are free than were asked for."""

    def __init__(self, requested: int, available: int) -> None:
        super().__init__(
            "not enough cpus available to satisfy request: "
            f"requested={requested}, available={available}"
        )
