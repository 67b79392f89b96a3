"""The whole agent on a node that runs short of everything, under hypothesis."""

from __future__ import annotations

from tests.simulation.hard_machine import HardMachine
from tests.simulation.profile import EXAMPLES, run_machine


def test_the_agent_does_right_while_everything_runs_short() -> None:
    # A walk takes longer than one of the plain machine, most of whose steps it takes too.
    run_machine(HardMachine, examples=max(1, EXAMPLES // 20))
