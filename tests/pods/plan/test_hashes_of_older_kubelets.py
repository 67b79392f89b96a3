"""A container of a Go kubelet before 1.31, whose hash is of another form."""

from __future__ import annotations

import pytest

from kubelet_trio.model import ContainerId, ContainerRecord, ContainerState, SandboxId
from kubelet_trio.pods.plan.pod_plan import PlanInput
from kubelet_trio.pods.plan.starts import has_changed


@pytest.mark.parametrize(
    ("found", "image", "wanted", "changed"),
    [
        ("1f", "docker.io/library/web:1", "web:1", False),  # ours
        ("2e", "docker.io/library/web:1", "web:1", False),  # theirs, of the same image
        ("2e", "docker.io/library/web:1", "web:2", True),
        ("2e", "", "web:1", True),  # nothing shows that it is the same
        ("", "docker.io/library/web:1", "web:2", False),
    ],
)
def test_an_image_tells_where_a_hash_cannot(
    found: str, image: str, wanted: str, changed: bool
) -> None:
    record = ContainerRecord(
        ContainerId("c"),
        "main",
        SandboxId("s"),
        ContainerState.RUNNING,
        0,
        0.0,
        image=image,
        hash=found,
    )
    given = PlanInput(now=0, hashes={"main": 0x1F}, images={"main": wanted})
    assert has_changed(record, given) is changed
