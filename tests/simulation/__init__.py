"""Simulations: machines that drive parts of the agent, and all of it, in virtual time."""

import pytest

pytest.register_assert_rewrite(
    "tests.simulation.agent_machine", "tests.simulation.pleg_machine", "tests.simulation.world"
)
