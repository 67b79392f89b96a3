"""When `kubelet-trio restart --wait` is satisfied, and when it gives up."""

from __future__ import annotations

from typing import Any

import pytest

from kubelet_trio.cli.client import ClientError
from kubelet_trio.cli.restart import _is_done


def pod(instance: str, state: dict[str, Any], *, ready: bool = True) -> dict[str, Any]:
    return {
        "status": {
            "containerStatuses": [{"name": "a", "containerID": instance, "state": state}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
    }


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (pod("old", {"running": {}}), False),
        (pod("old", {"terminated": {"exitCode": 143}}), False),
        (pod("new", {"running": {}}), True),
        (pod("new", {"running": {}}, ready=False), False),
        (pod("new", {"waiting": {"reason": "CrashLoopBackOff"}}), False),
        ({"status": {}}, False),
    ],
)
def test_a_restart_is_done_when_a_new_instance_is_ready(
    seen: dict[str, Any], expected: bool
) -> None:
    assert _is_done(seen, {"a": "old"}) is expected


def test_a_new_instance_that_ends_is_told() -> None:
    with pytest.raises(ClientError, match=r'container "a" .* exit code 3'):
        _is_done(pod("new", {"terminated": {"exitCode": 3}}), {"a": "old"})
