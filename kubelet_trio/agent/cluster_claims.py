"""What an API server has of dynamic resource allocation: the claims of pods, the node's slices."""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.models.resource_v1 import ResourceClaim, ResourceSlice

from kubelet_trio.kube import API_ERRORS, KubeApi, NotFoundError
from kubelet_trio.managers import ClaimError, ClaimKey, SliceRemovalError

_PAGE = 500  # objects of one list


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


@dataclass(frozen=True, slots=True)
class ClusterSlices:
    """The `NodeSlices` of a node at the API server."""

    api: KubeApi
    node: str

    async def remove(self, driver: str) -> None:
        """Remove the slices of a driver, "": of all. Raises `SliceRemovalError`."""
        selector = f"spec.nodeName={self.node}"
        if driver:
            selector += f",spec.driver={driver}"
        token = ""
        try:
            while True:
                page = await self.api.list(
                    ResourceSlice, field_selector=selector, limit=_PAGE, continue_token=token
                )
                for found in page.items:
                    await self._delete(found)
                token = page.continue_token
                if not token:
                    return
        except NotFoundError:
            return  # the API server does not have resource.k8s.io/v1: Kubernetes before 1.34
        except API_ERRORS as exc:
            raise SliceRemovalError(str(exc)) from exc

    async def _delete(self, found: ResourceSlice) -> None:
        meta = found.metadata
        if meta is None or not meta.name:
            return
        try:
            # The UID: a driver that is back may have made another one of the name.
            await self.api.delete(ResourceSlice, meta.name, uid=meta.uid or "")
        except NotFoundError:
            return
