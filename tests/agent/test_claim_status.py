"""What the node reports to claims, with the rights of a node."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import PersistentVolumeClaim, PersistentVolumeClaimSpec
from lightkube.models.core_v1 import PersistentVolumeClaimStatus as Status
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.agent.claim_status import ClusterClaimStatus
from kubelet_trio.objects import ObjectError
from kubelet_trio.testing import FakeKube
from kubelet_trio.volumes.expansion import failed_patch, finished_patch, progress_patch


async def test_a_claims_resize_is_reported_to_the_api_server(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(
        PersistentVolumeClaim(
            metadata=ObjectMeta(name="c", namespace="default"),
            spec=PersistentVolumeClaimSpec(volumeName="pv"),
            status=Status(
                phase="Bound",
                capacity={"storage": "1Gi"},
                allocatedResources={"storage": "2Gi"},
                allocatedResourceStatuses={"storage": "NodeResizePending"},
            ),
        )
    )
    claims = ClusterClaimStatus(kube)
    first = await kube.get(PersistentVolumeClaim, "c", namespace="default")
    claim = await claims.patch(first, progress_patch(first))
    assert claim.status is not None
    assert claim.status.allocatedResourceStatuses == {"storage": "NodeResizeInProgress"}
    claim = await claims.patch(
        claim, failed_patch(claim, "no", "2026-01-01T00:00:00Z", is_infeasible=False)
    )
    assert claim.status is not None
    assert [c.type for c in claim.status.conditions or ()] == ["NodeResizeError"]
    claim = await claims.patch(claim, finished_patch(claim, "2Gi"))
    assert claim.status is not None
    assert claim.status.capacity == {"storage": "2Gi"}
    assert not claim.status.allocatedResourceStatuses
    assert not claim.status.conditions
    # Somebody has changed the claim since it was read.
    with pytest.raises(ObjectError, match='patchPVCStatus failed to patch PVC "c"'):
        await claims.patch(first, progress_patch(first))
