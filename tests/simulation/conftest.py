"""Says at the end which seed the simulations ran from: it makes a failure come back."""

from __future__ import annotations

import pytest

from tests.simulation.profile import EXAMPLES, SEED, STEPS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(
        f"simulation: KUBELET_TRIO_SIMULATION_SEED={SEED}, "
        f"{EXAMPLES} examples of up to {STEPS} steps a machine"
    )
