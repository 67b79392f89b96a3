"""A node's life in disorder, for a minute; `python -m bench.soak` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import Containerd
from tests.harness.control_plane import ControlPlane
from tests.harness.kube import KubeClient
from tests.harness.observer import judge
from tests.harness.pods import Json
from tests.harness.soak import Soak
from tests.harness.soak_checks import Usage, growth

SEED = 20


def test_nothing_diverges(
    plane: ControlPlane,
    kube: KubeClient,
    containerd: Containerd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    print(f"seed {SEED}")
    soak = Soak(tmp_path, plane, kube, containerd, SEED, print)
    try:
        soak.open()
        soak.run(checkpoints=2, steps=25)
    finally:
        soak.close()


def _pod(phase: str, *, ready: bool = True, restarts: int = 0, **state: Json) -> Json:
    main = {"name": "main", "restartCount": restarts, "containerID": "c://1", "state": state}
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"phase": phase, "conditions": conditions, "containerStatuses": [main]}
    return {"metadata": {"name": "pod"}, "status": status}


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (_pod("Running"), _pod("Pending"), "phase"),
        (_pod("Failed"), _pod("Succeeded"), "phase"),
        (_pod("Running", restarts=2), _pod("Running", restarts=1), "restartCount"),
        (_pod("Running"), _pod("Running", ready=False), "not Ready"),
        (_pod("Running"), _pod("Running", restarts=1), "was restarted"),
        (_pod("Running", terminated={}), _pod("Running", running={}), "runs after its end"),
    ],
)
def test_the_observer_notices(before: Json, after: Json, fault: str) -> None:
    assert any(fault in found for found in judge(before, after, may_change=False))
    assert judge(before, before, may_change=True) == []


def test_growth_is_noticed() -> None:
    first = Usage(pid=1, pods=5, fds=50, rss=60_000_000)
    assert growth([first, Usage(1, 5, 52, 61_000_000), Usage(2, 5, 200, 99_000_000)]) == []
    assert len(growth([first, Usage(1, 5, 100, 99_000_000)])) == 2
