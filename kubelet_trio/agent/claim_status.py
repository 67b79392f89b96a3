"""Reports to the status of claims on an API server that their volumes have grown on the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightkube.models.core_v1 import PersistentVolumeClaim
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.kube import API_ERRORS, KubeApi
from kubelet_trio.objects import ObjectError


@dataclass(frozen=True, slots=True)
class ClusterClaimStatus:
    """A `volumes.ClaimStatus` on the API server (PatchPVCStatus in pkg/volume/util)."""

    api: KubeApi

    async def patch(
        self, claim: PersistentVolumeClaim, body: Mapping[str, Any]
    ) -> PersistentVolumeClaim:
        """Send a strategic merge patch; return the new claim. Raises `ObjectError`."""
        meta = claim.metadata or ObjectMeta()
        try:
            return await self.api.patch(
                PersistentVolumeClaim,
                meta.name or "",
                body,
                namespace=meta.namespace or "",
                subresource="status",
            )
        except API_ERRORS as exc:
            raise ObjectError(f'patchPVCStatus failed to patch PVC "{meta.name}": {exc}') from exc
