"""What a probe is, what it finds, and what becomes of that."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from lightkube.models.core_v1 import Container, Probe


class ProbeKind(enum.Enum):
    """The three probes a container may have; the value is upstream's name in events."""

    LIVENESS = "Liveness"
    READINESS = "Readiness"
    STARTUP = "Startup"

    def of(self, container: Container) -> Probe | None:
        """Return the container's probe of this kind, None if it has none."""
        probe: Probe | None = getattr(container, f"{self.value.lower()}Probe")
        return probe


class ProbeResult(enum.Enum):
    """What is held of a container: decided by its thresholds, kept until decided anew."""

    UNKNOWN = "unknown"
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one run of a probe found. `warning`: a success that somebody should look at."""

    is_success: bool
    output: str = ""
    is_warning: bool = False


class ProbeError(Exception):
    """A run that found nothing: it is tried again, and then changes nothing.

    `state` is upstream's name for what it is counted as, and only shown.
    """

    def __init__(self, message: str, state: str = "unknown") -> None:
        super().__init__(message)
        self.state = state
