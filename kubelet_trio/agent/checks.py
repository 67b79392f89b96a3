"""The checks behind the health endpoints: does the agent keep managing its pods?"""

from __future__ import annotations

from collections.abc import Callable

import trio

from kubelet_trio.agent.parts import Parts
from kubelet_trio.server import Ports
from kubelet_trio.supervision import ChildState

# The least limit in seconds since the last turn: minDuration of syncLoopHealthCheck.
_LEAST = 300.0
REGISTRATION_PORT = "device-plugins"  # in `Ports`; not beside the socket, which loads more


def check_functions(parts: Parts, ports: Ports) -> dict[str, Callable[[], str | None]]:
    """Return the checks by name; each returns the problem, None if there is none."""
    state, pleg = parts.runtime.health.state, parts.runtime.pleg
    checks: dict[str, Callable[[], str | None]] = {
        "syncloop": lambda: _sync_loop_problem(parts),
        "pleg": lambda: pleg.problem(trio.current_time()),
        "runtime": lambda: state.value.problem or None,
        "network": lambda: state.value.network_problem or None,
    }
    if parts.supplies.devices is not None:
        checks["device-plugin"] = lambda: _registration_problem(ports)
    return checks


def _registration_problem(ports: Ports) -> str | None:
    """Return why no device plugin can register, None if they can, or before the first attempt.

    Source: GetHealthChecker of pkg/kubelet/cm/devicemanager.
    """
    problem = ports.problem(REGISTRATION_PORT)
    if not problem:
        return None
    return (
        "device registration error: device plugin registration gRPC server failed and no device "
        f"plugins can register: {problem}"
    )


def _sync_loop_problem(parts: Parts) -> str | None:
    """Return why the pod workers do not receive the desired pods, None if they do.

    The merge of the sources takes a turn at each delivery and every `sync_period` seconds.

    Source: syncLoopHealthCheck in pkg/kubelet/server/server.go.
    """
    pods = parts.pods
    for part in (pods.supervisor.tree(), *pods.sources.tree().children):
        if part.name in ("pods", "merge") and part.state is not ChildState.RUNNING:
            return f"{part.name} is {part.state.value}"
    period = parts.setup.settings.sync_period
    return overdue(pods.desired.turned_at, trio.current_time(), period)


def overdue(turned: float | None, now: float, sync_period: float) -> str | None:
    """Return the problem if the last turn is too long ago; None before the first turn, too."""
    limit = max(2 * sync_period, _LEAST)
    if turned is None or now - turned <= limit:
        return None
    return f"the sources were last merged {now - turned:.0f} s ago, more than {limit:.0f} s"
