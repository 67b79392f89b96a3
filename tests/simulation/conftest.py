"""Says at the end which seed the simulations ran from: it makes a failure come back."""

from __future__ import annotations

import os

import pytest

from tests.simulation.profile import EXAMPLES, SEED, STEPS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(
        f"simulation: KUBELET_TRIO_SIMULATION_SEED={SEED}, "
        f"{EXAMPLES} examples of up to {STEPS} steps a machine"
    )


@pytest.fixture(scope="session", autouse=True)
def gives_way() -> None:
    """Let other processes go first: another worker may run real agents at the same time."""
    # For the rest of this process; the simulations are the last of its tests.
    os.nice(10)
