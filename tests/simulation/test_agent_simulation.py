"""The whole agent under hypothesis: it does right whatever happens, and in the end all is well."""

from __future__ import annotations

from tests.simulation.agent_machine import AgentMachine
from tests.simulation.profile import run_machine


def test_the_agent_does_right_whatever_happens() -> None:
    run_machine(AgentMachine)
