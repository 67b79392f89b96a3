"""A node without an API server: claims' documents, drivers that keep the rules, and real files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import trio
from lightkube.models.core_v1 import Container, Pod, PodResourceClaim, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
    ResourceSlice,
)

from kubelet_trio.managers import CheckpointKeeper
from kubelet_trio.managers.claims import (
    LocalClaims,
    NodeFacts,
    OfferedSlices,
    ResourceClaims,
    claim_documents,
    load_claims,
    with_claim_statuses,
)
from kubelet_trio.managers.claims.state import NO_CLAIMS
from kubelet_trio.model import Meter, Offload, PodUid, inline_offload, pod_uid
from tests.managers.claims.allocation.worlds import DRIVER, device_class, resource_slice
from tests.managers.claims.node import Driver

NODE = NodeFacts("n1")

Document = ResourceClaim | ResourceClaimTemplate | DeviceClass | ResourceSlice


def pod(name: str, *, claim: str = "", template: str = "") -> Pod:
    use = PodResourceClaim("gpu", claim or None, template or None)
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PodSpec(containers=[Container("main", image="i")], resourceClaims=[use]),
    )


def template(claim: ResourceClaim) -> ResourceClaimTemplate:
    """Return a template of the claim's name for claims like it."""
    return ResourceClaimTemplate(
        metadata=claim.metadata,
        spec=ResourceClaimTemplateSpec(
            metadata=ObjectMeta(labels={"of": "template"}), spec=claim.spec
        ),
    )


class Node:
    """`reboot` replaces the agent; files, drivers and pods stay."""

    def __init__(self, root: Path, *, offload: Offload = inline_offload) -> None:
        self.root, self.offload = root, offload
        self.driver = Driver(DRIVER)
        self.files = OfferedSlices((resource_slice("gpu-0"),))
        self.documents: list[Document] = [device_class()]
        self.pods: dict[PodUid, Pod] = {}
        self.known: set[PodUid] | None = set()
        self.woken: list[PodUid] = []
        self.uids = 0
        self.boot()

    def boot(self) -> None:
        self.local = LocalClaims(
            self.root,
            NODE,
            self,
            offload=self.offload,
            known_pods=lambda: self.known,
            prepared=lambda: self.manager.table,
            changed=self.woken.append,
            make_uid=self._make_uid,
        )
        self.manager = ResourceClaims(
            load_claims(self.root) or NO_CLAIMS,
            CheckpointKeeper(self.root, inline_offload),
            self.local,
            self,
            Meter(),
        )
        self.apply()

    def _make_uid(self) -> str:
        self.uids += 1
        return f"claim-{self.uids}"

    def apply(self, *pods: Pod, documents: Iterable[Document] = ()) -> None:
        self.documents += documents
        for one in pods:
            self.pods[pod_uid(one)] = with_claim_statuses(one)
            if self.known is not None:
                self.known.add(pod_uid(one))
        self.local.apply(dict(self.pods), claim_documents(self.documents))

    def remove(self, name: str) -> Pod:
        """Remove a pod from the manifests; it is still known until it has ended."""
        gone = self.pods.pop(PodUid(f"uid-{name}"))
        self.local.apply(dict(self.pods), claim_documents(self.documents))
        return gone

    async def end(self, name: str) -> None:
        """Remove a pod, and let it end."""
        self.remove(name)
        await self.manager.unprepare(PodUid(f"uid-{name}"))
        assert self.known is not None
        self.known.discard(PodUid(f"uid-{name}"))

    async def prepare(self, name: str) -> None:
        await self.manager.prepare(self.pods[PodUid(f"uid-{name}")])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run what the agent's tree would."""
        async with trio.open_nursery() as nursery:
            for child in self.manager.children(lambda: self.known):
                await nursery.start(child.run)
            await nursery.start(self.local.run)
            task_status.started()

    # SliceReader and ClaimDrivers

    async def read(self) -> OfferedSlices:
        return self.files

    def find(self, driver: str) -> Driver:
        assert driver == DRIVER
        return self.driver
