"""What a node of a cluster says of its volumes to the API server, and learns of them there."""

from __future__ import annotations

from dataclasses import dataclass

from kubelet_trio.agent.claim_status import ClusterClaimStatus
from kubelet_trio.kube import KubeApi
from kubelet_trio.model import Bell
from kubelet_trio.node import CsiNodeObject, NodeIdentity, NodeObject, ReportedVolumes
from kubelet_trio.objects import ClusterAttachments, ClusterMemory
from kubelet_trio.volumes import AttachController


@dataclass(frozen=True, slots=True)
class ClusterVolumes:
    """The parts of volumes that need the API server.

    Attributes:
        claims: writes the statuses of claims that grow.
        in_use: the node's `volumesInUse`.
        attachments: waits for what the attach controller does.
        controller: that controller, for kinds of the host; None: the agent attaches, as far as
            anyone does.
        csi_node: keeps the node's CSINode.
    """

    claims: ClusterClaimStatus
    in_use: ReportedVolumes
    attachments: ClusterAttachments
    controller: AttachController | None
    csi_node: CsiNodeObject


def make_cluster_volumes(
    api: KubeApi, identity: NodeIdentity, node: NodeObject, changed: Bell, memory: ClusterMemory
) -> ClusterVolumes:
    """Build the parts; `changed` is rung when the node's status has to be reported at once."""
    name, by_controller = identity.name, identity.attach_detach
    in_use = ReportedVolumes(changed)
    attachments = ClusterAttachments(
        api, name, node.value, by_controller=by_controller, memory=memory
    )
    return ClusterVolumes(
        ClusterClaimStatus(api),
        in_use,
        attachments,
        AttachController(in_use, attachments) if by_controller else None,
        CsiNodeObject(api, name, node, changed),
    )
