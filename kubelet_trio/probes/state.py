"""A probe's findings, and the state that they lead to. Pure.

Source: prober/worker.go of Kubernetes 1.36. A new container starts with the initial result of the
probe's kind. The result changes once as many findings in a row as the threshold demands are of
the other kind. A liveness or startup probe that has failed does not run again until there is a
new container.

One difference: here a row of findings starts anew with each container.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from lightkube.models.core_v1 import Container, Probe

from kubelet_trio.model import ContainerId, ContainerRecord, ContainerState


class ProbeKind(enum.Enum):
    """The three kinds of probes; the value is the name in events."""

    LIVENESS = "Liveness"
    READINESS = "Readiness"
    STARTUP = "Startup"

    def of(self, container: Container) -> Probe | None:
        """Return the container's probe of this kind; None if it has none."""
        probe: Probe | None = getattr(container, f"{self.value.lower()}Probe")
        return probe


class ProbeResult(enum.Enum):
    """The result of a probe after its thresholds, kept until another is decided."""

    UNKNOWN = "unknown"
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one run of a probe found. `is_warning`: a success with a ProbeWarning event."""

    is_success: bool
    output: str = ""
    is_warning: bool = False


class ProbeError(Exception):
    """A run ended without a finding. It is retried, and does not change the result.

    `state` is upstream's name of the outcome, for the text of the event.
    """

    def __init__(self, message: str, state: str = "unknown") -> None:
        super().__init__(message)
        self.state = state


# A new container is healthy until a probe fails, and not ready until one succeeds. Whether it has
# started is unknown until its startup probe has a result.
INITIAL = {
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The state of one probe of one container instance: the last `row` findings were `last`."""

    kind: ProbeKind
    container_id: ContainerId
    result: ProbeResult
    last: ProbeResult = ProbeResult.UNKNOWN
    row: int = 0
    on_hold: bool = False

    def after(self, probe: Probe, *, is_success: bool) -> ProbeState:
        """Return the state after one more finding."""
        found = ProbeResult.SUCCESS if is_success else ProbeResult.FAILURE
        row = self.row + 1 if found is self.last else 1
        threshold = probe.successThreshold if is_success else probe.failureThreshold
        if row < (threshold or 1):
            return replace(self, last=found, row=row)
        # The container will be restarted. Upstream stops probing it, since an exec in a container
        # that is being stopped could corrupt its state: kubernetes/kubernetes#21751.
        on_hold = not is_success and self.kind is not ProbeKind.READINESS
        return replace(self, result=found, last=found, row=row, on_hold=on_hold)


def is_due(
    state: ProbeState, probe: Probe, container: ContainerRecord, *, is_started: bool, now: float
) -> bool:
    """Return whether a probe runs at this tick (`now` in Unix seconds)."""
    if state.on_hold or container.state is not ContainerState.RUNNING:
        return False
    # Upstream compares whole seconds, rounded down.
    if int(now - container.started_at) < (probe.initialDelaySeconds or 0):
        return False
    # The startup probe runs until the container has started, the others from then on.
    return is_started != (state.kind is ProbeKind.STARTUP)
