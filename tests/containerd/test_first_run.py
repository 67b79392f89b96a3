"""The README's first command with containerd: its examples are real containers."""

from __future__ import annotations

import subprocess

from tests.harness import BUSYBOX, Containerd, CriClient
from tests.harness.first_run import first_run
from tests.harness.pods import eventually

EXAMPLES_IMAGE = "docker.io/library/busybox:1.36"


def test_the_first_command_runs_its_examples_on_containerd(
    containerd: Containerd, cri: CriClient
) -> None:
    ctr = ["ctr", "--address", str(containerd.socket), "-n", "k8s.io", "images"]
    subprocess.run([*ctr, "tag", BUSYBOX, EXAMPLES_IMAGE], check=True, capture_output=True)
    # The images of the registry's name are there only here: no pull is tried.
    eventually(lambda: EXAMPLES_IMAGE in cri.image_names())
    others = {sandbox.id for sandbox in cri.sandboxes()}
    try:
        with first_run(
            f"--container-runtime-endpoint={containerd.endpoint}",
            f"--cgroup-root={containerd.layout.cgroup}",
            "--cgroup-driver=cgroupfs",
        ) as run:
            eventually(lambda: "hello from web on web" in run.page(), within=60)
            eventually(lambda: "CrashLoopBackOff" in run.printed(), within=60)
            eventually(lambda: "2/2" in run.printed(), within=60)
            names = {s.metadata.name for s in cri.sandboxes() if s.metadata and s.id not in others}
            assert {name.partition("-")[0] for name in names} == {"web", "crash", "sidecar"}
            assert run.interrupt() == 130
            assert "all pods are ended and removed" in run.printed()
            assert run.processes() == []
        assert {sandbox.id for sandbox in cri.sandboxes()} <= others
    finally:
        subprocess.run([*ctr, "rm", EXAMPLES_IMAGE], check=True, capture_output=True)
