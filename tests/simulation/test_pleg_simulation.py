"""The PLEG under hypothesis: it finds the truth again whatever happened."""

from __future__ import annotations

import pytest

from tests.simulation.pleg_machine import EventedPlegMachine, PlegMachine
from tests.simulation.profile import run_machine


@pytest.mark.parametrize("machine", [PlegMachine, EventedPlegMachine])
def test_the_cache_tells_the_truth_once_faults_stop(machine: type[PlegMachine]) -> None:
    run_machine(machine)
