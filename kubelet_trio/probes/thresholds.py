"""When a probe runs, and what its findings make of a container: pure.

Source: prober/worker.go of Kubernetes 1.36. In its words: a new container begins with the
initial result of its probe's kind; a result is held until as many findings in a row as
the threshold says are of the other kind; a liveness or startup probe that has failed
holds still until there is a new container.

One difference: a row of findings begins anew with each container.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lightkube.models.core_v1 import Probe

from kubelet_trio.model import ContainerId, ContainerRecord, ContainerState
from kubelet_trio.probes.types import ProbeKind, ProbeResult

INITIAL = {
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class ProbeState:
    """One probe of one container instance. `row` findings in a row were `last`."""

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
        on_hold = not is_success and self.kind is not ProbeKind.READINESS
        return replace(self, result=found, last=found, row=row, on_hold=on_hold)


def is_due(
    state: ProbeState, probe: Probe, container: ContainerRecord, *, is_started: bool, now: float
) -> bool:
    """Return whether a probe runs at this tick (`now` in Unix seconds)."""
    if state.on_hold or container.state is not ContainerState.RUNNING:
        return False
    # Whole seconds, cut, as upstream counts them.
    if int(now - container.started_at) < (probe.initialDelaySeconds or 0):
        return False
    # The startup probe is for what has not started, the others for what has.
    return is_started != (state.kind is ProbeKind.STARTUP)
