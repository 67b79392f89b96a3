"""Claims under hypothesis: nobody uses what is not prepared, and in the end all is given back."""

from __future__ import annotations

from tests.simulation.claim_machine import ClaimMachine
from tests.simulation.profile import EXAMPLES, run_machine

# An example takes some seconds, most of them in the calm at its end.
SHARE = 20


def test_claims_do_right_whatever_happens() -> None:
    run_machine(ClaimMachine, examples=max(1, EXAMPLES // SHARE), steps=40)
