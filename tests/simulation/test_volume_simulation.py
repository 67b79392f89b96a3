"""Volumes under hypothesis: no rule of CSI is broken, and in the end all is well."""

from __future__ import annotations

from tests.simulation.profile import run_machine
from tests.simulation.volume_machine import VolumeMachine


def test_volumes_do_right_whatever_happens() -> None:
    run_machine(VolumeMachine)
