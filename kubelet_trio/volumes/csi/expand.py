"""Let CSI volumes grow on the node: NodeExpandVolume.

Source: nodeExpandWithClient in pkg/volume/csi/expander.go, with its texts.
"""

from __future__ import annotations

from dataclasses import replace

from kubelet_trio.objects import ObjectError
from kubelet_trio.volumes.csi.block_paths import BlockPaths
from kubelet_trio.volumes.csi.client import DriverClient
from kubelet_trio.volumes.csi.data import GLOBAL_MOUNT, MOUNT, RECORD, publish_dir, stage_dir
from kubelet_trio.volumes.csi.generated.csi import v1
from kubelet_trio.volumes.csi.inputs import SecretUse, VolumeUse, secret_values, volume_use
from kubelet_trio.volumes.csi.node import CsiNode
from kubelet_trio.volumes.csi.staging import access_of
from kubelet_trio.volumes.csi.types import Capability
from kubelet_trio.volumes.errors import CsiCallError, DriverNotFoundError
from kubelet_trio.volumes.expansion import GrowthError, GrowthProblem
from kubelet_trio.volumes.layout import device_link
from kubelet_trio.volumes.spec import VolumeSpec

_TEXT = "Expander.NodeExpand failed to expand the volume"
_NO_SECRET = "expander.NodeExpand failed to get {}: "
# isInfeasibleError: the driver will never be able to do it.
_INFEASIBLE = ("InvalidArgument", "OutOfRange", "NotFound")


async def grow_volume(node: CsiNode, spec: VolumeSpec, size: int) -> None:
    """Let a published volume grow to `size` bytes. Idempotent. Raises `GrowthError`."""
    try:
        use = volume_use(spec)
        async with node.locks.hold(use.volume.unique_name):
            client = node.drivers.client(use.volume.driver)
            if not await node.offload(_is_published, node, spec):
                # A driver would answer NOT_FOUND, which the claim's status keeps for good.
                text = f"volume {spec.disk_name} is not published to pod {spec.uid} any more"
                raise GrowthError(text, GrowthProblem.GONE)
            if not client.can(Capability.EXPAND_VOLUME):
                text = f"NodeExpand is not supported by the CSI driver {use.volume.driver}"
                raise GrowthError(text, GrowthProblem.UNSUPPORTED)
            await client.expand(_request(node, use, client, size))
    except CsiCallError as exc:
        raise _failure(exc) from exc
    except (DriverNotFoundError, ObjectError, OSError, ValueError) as exc:
        raise GrowthError(str(exc), GrowthProblem.UNCERTAIN) from exc


def _is_published(node: CsiNode, spec: VolumeSpec) -> bool:
    """Whether the disk shows that a pod has a volume. Blocks."""
    pod_dir = node.pods_dir / spec.uid
    if spec.is_block:
        return device_link(pod_dir, "csi", spec.disk_name).is_symlink()
    return (publish_dir(pod_dir, spec.disk_name) / RECORD).exists()


def _request(
    node: CsiNode, use: VolumeUse, client: DriverClient, size: int
) -> v1.NodeExpandVolumeRequest:
    """Return the request. Raises `GrowthError`: the secret is missing."""
    spec, secret = use.spec, use.spec.source.nodeExpandSecretRef
    wanted = secret and SecretUse("NodeExpandSecretRef", secret.namespace or "", secret.name or "")
    path, staging_path = _paths(node, use)
    can_stage = client.can(Capability.STAGE_UNSTAGE_VOLUME)
    try:
        secrets = secret_values(use, wanted, _NO_SECRET) if spec.persistent is not None else {}
    except ObjectError as exc:
        # Final, as upstream: the claim says it.
        raise GrowthError(str(exc), GrowthProblem.FAILED) from exc
    return v1.NodeExpandVolumeRequest(
        volume_id=use.volume.handle,
        volume_path=path,
        capacity_range=v1.CapacityRange(required_bytes=size),
        staging_target_path=staging_path if can_stage else "",
        volume_capability=client.capability_of(replace(access_of(use, client), group=None)),
        secrets=secrets,
    )


def _paths(node: CsiNode, use: VolumeUse) -> tuple[str, str]:
    """Return where a volume is published and where it is staged."""
    spec = use.spec
    if spec.is_block:
        paths = BlockPaths(node.root_dir, spec.disk_name)
        return str(paths.targets / spec.uid), str(paths.staging)
    target = publish_dir(node.pods_dir / spec.uid, spec.disk_name) / MOUNT
    return str(target), str(stage_dir(node.root_dir, use.volume) / GLOBAL_MOUNT)


def _failure(exc: CsiCallError) -> GrowthError:
    if exc.code == "FailedPrecondition":
        return GrowthError(f"{_TEXT} : {exc}", GrowthProblem.IN_USE)
    if exc.code in _INFEASIBLE:
        return GrowthError(f"{_TEXT} {exc}", GrowthProblem.INFEASIBLE)
    # The Go kubelet takes a wrapped timeout for final; here the driver may still be at work.
    problem = GrowthProblem.FAILED if exc.is_final else GrowthProblem.UNCERTAIN
    return GrowthError(f"{_TEXT} : {exc}", problem)
