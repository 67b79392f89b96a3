"""The claims of pods at an API server."""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.models.resource_v1 import ResourceClaim

from kubelet_trio.kube import API_ERRORS, KubeApi
from kubelet_trio.managers import ClaimError, ClaimKey


@dataclass(frozen=True, slots=True)
class ClusterClaims:
    """A `ClaimSource` on the API server.

    A node may get single claims of its pods, and neither list nor watch them: as upstream, each
    preparation asks anew.
    """

    api: KubeApi

    async def get(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim as it is now. Raises `ClaimError`."""
        try:
            return await self.api.get(ResourceClaim, key.name, namespace=key.namespace)
        except API_ERRORS as exc:
            raise ClaimError(f"fetch ResourceClaim {key.name}: {exc}") from exc
