"""ClusterTrustBundles of an API server, for projected volumes.

One watch of all bundles, while a pod has a volume with some of them: a source selects them by name,
or by signer and labels. Upstream: pkg/kubelet/clustertrustbundle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial

import trio
from lightkube.models.certificates_v1beta1 import ClusterTrustBundle
from lightkube.models.core_v1 import ClusterTrustBundleProjection

from kubelet_trio.kube import KubeApi, Reflector, ServerFeatures
from kubelet_trio.model import PodUid, matches_label_selector, sha256
from kubelet_trio.objects.errors import ObjectError
from kubelet_trio.objects.pem import certificates_pem, pem_blocks
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor

_CHILD = "trust-bundles"
_FIRST_LIST = 10.0  # seconds that pods wait for the first list


class ClusterTrustBundles:
    """A `TrustBundles` on an API server."""

    def __init__(
        self,
        api: KubeApi,
        tree: DynamicSupervisor,
        changed: Callable[[PodUid], None] = lambda _uid: None,
        features: ServerFeatures | None = None,
    ) -> None:
        """Take the seams; nothing is read yet.

        Args:
            api: the API server.
            tree: supervises the watch.
            changed: called for each pod with trust anchors when a bundle has changed.
            features: of the server.
        """
        self._api = api
        self._tree = tree
        self._changed = changed
        self._features = features
        self._holders: set[PodUid] = set()
        self._reflector: Reflector[ClusterTrustBundle] | None = None
        self._patient_until = 0.0  # trio time
        # No program shall rely on an order of the anchors: each life of the agent has another.
        self._salt = os.urandom(16)

    async def anchors(self, source: ClusterTrustBundleProjection, uid: PodUid) -> bytes:
        """Return the anchors that a source of a pod's volume selects. Raises `ObjectError`."""
        reflector = self._follow(uid)
        with trio.move_on_at(self._patient_until):
            await reflector.synced.wait()
        if not reflector.synced.is_set():
            trouble = f": {reflector.trouble}" if reflector.trouble else ""
            raise ObjectError(f"ClusterTrustBundle informer has not yet synced{trouble}")
        found = list(_select(reflector.objects.values(), source))
        if found or source.optional:
            return self._normalized(found)
        if source.name is not None:
            raise ObjectError(
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "
                f'"{source.name}" not found'
            )
        raise ObjectError(
            "combination of signerName and labelSelector matched zero ClusterTrustBundles"
        )

    def forget(self, uid: PodUid) -> None:
        """Wake a pod no more; without any, the watch ends."""
        self._holders.discard(uid)
        if not self._holders and self._reflector is not None:
            self._reflector = None
            self._tree.stop_child(_CHILD)

    def _follow(self, uid: PodUid) -> Reflector[ClusterTrustBundle]:
        self._holders.add(uid)
        if self._reflector is None:
            self._reflector = Reflector(self._api, ClusterTrustBundle, features=self._features)
            self._patient_until = trio.current_time() + _FIRST_LIST
            self._tree.start_child(ChildSpec(_CHILD, partial(self._run, self._reflector)))
        return self._reflector

    async def _run(
        self,
        reflector: Reflector[ClusterTrustBundle],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(reflector.run)
            task_status.started()
            while True:
                await reflector.wait_delivery()
                for uid in sorted(self._holders):
                    self._changed(uid)

    def _normalized(self, bundles: Iterable[ClusterTrustBundle]) -> bytes:
        """Return the certificates of bundles, each once, without what else is in their text."""
        anchors = {der for bundle in bundles for der in pem_blocks(bundle.spec.trustBundle)}
        order = sorted(anchors, key=lambda der: sha256(self._salt + der).digest())
        return certificates_pem(order)


def _select(
    bundles: Iterable[ClusterTrustBundle], source: ClusterTrustBundleProjection
) -> Iterable[ClusterTrustBundle]:
    """Yield the bundles that a source selects. Raises `ObjectError` if it is malformed."""
    if source.name is None and source.signerName is None:
        raise ObjectError(
            "ClusterTrustBundle projection requires either name or signerName to be set"
        )
    for bundle in bundles:
        meta = bundle.metadata
        if meta is None:
            continue
        if source.name is not None:
            is_selected = meta.name == source.name
        else:
            is_selected = bundle.spec.signerName == source.signerName and _matches(
                source, meta.labels or {}
            )
        if is_selected:
            yield bundle


def _matches(source: ClusterTrustBundleProjection, labels: dict[str, str]) -> bool:
    try:
        return matches_label_selector(source.labelSelector, labels)
    except ValueError as exc:
        raise ObjectError(f"while parsing label selector: {exc}") from exc
