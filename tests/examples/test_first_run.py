"""The README's first command, where there is no container runtime."""

from __future__ import annotations

import os

from tests.harness.first_run import first_run
from tests.harness.pods import eventually


def test_the_first_command_runs_pods_and_leaves_nothing() -> None:
    flags = ["--container-runtime-endpoint=process"]
    if os.getuid() == 0:
        flags.append("--process-allow-root")
    with first_run(*flags) as run:
        eventually(lambda: "hello from web" in run.page(), within=60)
        # The table is printed live; the crashing pod gets to its back-off by itself.
        eventually(lambda: "CrashLoopBackOff" in run.printed(), within=60)
        eventually(lambda: "2/2" in run.printed(), within=60)
        assert run.interrupt() == 130
        assert "all pods are ended and removed" in run.printed()
        assert run.processes() == []
        assert list(run.base.iterdir()) == [run.output]
