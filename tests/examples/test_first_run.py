"""The README's first command, where there is no container runtime."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request

from tests.harness.first_run import first_run
from tests.harness.pods import eventually

FLAGS = ("--container-runtime-endpoint=process", *["--process-allow-root"] * (os.getuid() == 0))


def test_the_first_command_runs_pods_and_leaves_nothing() -> None:
    with first_run(*FLAGS) as run:
        eventually(lambda: "hello from web" in run.page(), within=60)
        # The table is printed live; the crashing pod gets to its back-off by itself.
        eventually(lambda: "CrashLoopBackOff" in run.printed(), within=60)
        eventually(lambda: "2/2" in run.printed(), within=60)
        (page,) = re.findall(r"http://localhost:\d+/ui/", run.printed())
        with urllib.request.urlopen(page, timeout=5) as answer:
            assert answer.status == 200
        (short,) = re.findall(r"^    \. (/\S+)$", run.printed(), re.MULTILINE)
        told = ["bash", "-c", f". {short}; kt status"]
        status = subprocess.run(told, capture_output=True, text=True, cwd="/", check=True)
        assert "manifests: 3 pods" in status.stdout
        assert run.interrupt() == 130
        assert "all pods are ended and removed" in run.printed()
        assert run.processes() == []
        assert list(run.base.iterdir()) == [run.output]


def test_pods_that_are_kept_run_on_until_a_later_run_ends_them() -> None:
    with first_run(*FLAGS, options=["--keep"]) as run:
        eventually(lambda: "hello from web" in run.page(), within=60)
        assert run.interrupt() == 130
        assert "the pods run on" in run.printed()
        assert "hello from web" in run.page()
        (state,) = re.findall(r"first-run --state (\S+) ", run.printed())
        run.start("--state", state)
        # An agent that is stopped before it has taken its pods over leaves them.
        eventually(lambda: "web-" in run.printed(), within=60)
        assert run.interrupt() == 130
        assert "all pods are ended and removed" in run.printed()
        assert run.processes() == []
        assert list(run.base.iterdir()) == [run.output]
