"""Why the node is not ready, in the words of the Go kubelet (runtime.go, setters.go)."""

from __future__ import annotations

from dataclasses import dataclass

from kubelet_trio.cri import RuntimeState

# Seconds for which a runtime may be away before the node says so (maxWaitForContainerRuntime).
RUNTIME_LIMIT = 30.0
_SAID_SO = "RuntimeReady=false"  # the runtime's own verdict on itself


@dataclass(slots=True)
class RuntimeWatch:
    """When the runtime was last well. One writer: the status loop."""

    last_well: float | None = None  # trio time; None: not in this life

    def problems(self, state: RuntimeState, now: float) -> list[str]:
        """Return what of the runtime keeps the node from being ready."""
        found = []
        if state.is_ready:
            self.last_well = now
        elif state.problem.startswith(_SAID_SO):
            found.append(f"container runtime not ready: {state.problem}")
        elif self.last_well is None:
            found.append("container runtime status check may not have completed yet")
        elif now >= self.last_well + RUNTIME_LIMIT:
            found.append("container runtime is down")
        if state.network_problem and (state.is_ready or self.last_well is None):
            found.append(f"container runtime network not ready: {state.network_problem}")
        return found
