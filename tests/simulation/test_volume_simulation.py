"""Volumes under hypothesis: no rule of CSI is broken, and in the end all is well."""

from __future__ import annotations

from tests.simulation.profile import EXAMPLES, run_machine
from tests.simulation.volume_machine import VolumeMachine

# The whole agent's machine has volumes, too.
SHARE = 2


def test_volumes_do_right_whatever_happens() -> None:
    run_machine(VolumeMachine, examples=EXAMPLES // SHARE)
