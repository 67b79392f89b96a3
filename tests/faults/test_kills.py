"""Killed at any moment, the agent goes on where it was; what runs never notices."""

from __future__ import annotations

import os
import random
import time

from tests.faults.bed import Bed
from tests.harness import eventually

KILLS = int(os.environ.get("KUBELET_TRIO_KILLS", "25"))  # on each runtime
NAMES = [f"busy{n}" for n in range(4)]


def test_every_kill_converges_and_touches_nothing_steady(bed: Bed) -> None:
    seed = 7
    choose = random.Random(seed)
    steady = bed.pid_of("steady")
    wanted: dict[str, int] = {}
    for edit in range(1, KILLS + 1):
        for _ in range(2):
            name = choose.choice(NAMES)
            if name in wanted and choose.random() < 0.4:
                del wanted[name]
                bed.agent.drop(name)
            else:
                wanted[name] = edit
                bed.agent.put(bed.pod(name, edit))
        time.sleep(choose.random() * 0.6)
        bed.agent.kill()
        bed.agent.start()
    everything = {"steady": 0, **wanted}

    def wait_for(pods: dict[str, int], what: str) -> None:
        def has_converged() -> bool:
            bed.free_lost_tasks()
            return bed.runs(pods)

        eventually(has_converged, within=120, what=what, every=0.5)

    wait_for(everything, f"{everything} (seed {seed})")
    assert bed.pid_of("steady") == steady
    for name in wanted:
        bed.agent.drop(name)
    wait_for({"steady": 0}, "the rest is gone")
    uid = bed.agent.pods()["steady"]["metadata"]["uid"]
    # Of the pods that went nothing stays: no record, no directory, no log.
    left = (bed.agent.root / "pods", bed.agent.logs)
    eventually(
        lambda: all(uid in entry.name for d in left for entry in d.iterdir()),
        within=120,
        what=f"only the steady pod's directories in {left}",
    )


def test_a_second_agent_on_the_same_root_is_refused(bed: Bed) -> None:
    steady = bed.pid_of("steady")
    refused = bed.agent.run_again()
    assert refused.returncode != 0
    assert str(bed.agent.root) in refused.stdout + refused.stderr
    assert bed.agent.is_running
    assert bed.pid_of("steady") == steady
