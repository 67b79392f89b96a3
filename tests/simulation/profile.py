"""How long the simulations run, from which seed, and how their failures are shown.

Environment:
    KUBELET_TRIO_SIMULATION_EXAMPLES  examples of each machine (200; a nightly run: 10000)
    KUBELET_TRIO_SIMULATION_SEED      the seed to run from; a random one is drawn and printed

With PYTHONHASHSEED set alike as well, a run from the same seed is the same run.
"""

from __future__ import annotations

import os
import random

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

EXAMPLES = int(os.environ.get("KUBELET_TRIO_SIMULATION_EXAMPLES", "200"))
SEED = int(os.environ.get("KUBELET_TRIO_SIMULATION_SEED") or random.SystemRandom().randrange(2**32))
STEPS = 50


def run_machine(
    machine: type[RuleBasedStateMachine],
    *,
    examples: int = EXAMPLES,
    steps: int = STEPS,
    shrink: bool = True,
) -> None:
    """Run a state machine for so many examples of up to so many steps; raise if it fails."""
    phases = [Phase.explicit, Phase.generate] + ([Phase.shrink] if shrink else [])
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    # The seed is the factory's attribute, as hypothesis keeps it for test functions.
    hypothesis.seed(SEED)(machine)
    run_state_machine_as_test(machine, settings=profile)
