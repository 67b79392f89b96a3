"""Claims on a node without an API server: loaded with the first static pod that has some."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lightkube.models.core_v1 import Pod

from kubelet_trio.agent.settings import Seams
from kubelet_trio.containers import NodeSettings
from kubelet_trio.model import PodUid, Purpose, is_static, spec
from kubelet_trio.objects import DEVICE_KINDS
from kubelet_trio.sources import Desired

if TYPE_CHECKING:
    from lightkube.models.resource_v1 import ResourceClaim

    from kubelet_trio.agent.recording import Taps
    from kubelet_trio.managers import Claim, ClaimKey, LocalClaims, SliceReader

_FILE = "resource_claims.json"  # of the allocated claims, below the root directory


class LocalSource:
    """A `ClaimSource` that takes the pods and documents of each merge."""

    def __init__(
        self,
        node: NodeSettings,
        seams: Seams,
        known: Callable[[], Collection[PodUid] | None],
        prepared: Callable[[], Mapping[ClaimKey, Claim]],
        retry: Callable[[PodUid], None],
        taps: Taps | None = None,
    ) -> None:
        """Args are those of `LocalClaims`; `taps` are of the flight recorder."""
        self._node = node
        self._seams = seams
        self._known = known
        self._prepared = prepared
        self._retry = retry
        self._taps = taps
        self._claims: LocalClaims | None = None

    @property
    def claims(self) -> LocalClaims:
        """What allocates and keeps them."""
        if self._claims is None:
            from kubelet_trio.managers import LocalClaims, NodeFacts
            from kubelet_trio.sources import SliceFiles

            offload = self._seams.offload_for(Purpose.RECORDS)
            root_dir, name = self._node.root_dir, self._node.node_name
            inputs, taps = self._seams.claims, self._taps
            slices: SliceReader = SliceFiles(root_dir, name, offload)
            if inputs is not None:
                slices = inputs.slices
            if taps is not None:
                slices = taps.slices(slices)
            self._claims = LocalClaims(
                root_dir,
                NodeFacts(name),
                slices,
                offload=offload,
                known_pods=self._known,
                prepared=self._prepared,
                changed=self._retry,
                on_table=partial(taps.checkpoint, _FILE) if taps is not None else _nowhere,
            )
        return self._claims

    async def get(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim with its allocation. Raises `ClaimError`."""
        return await self.claims.get(key)

    def apply(self, desired: Desired) -> Desired:
        """Take the pods and documents; return the pods with the names of their claims."""
        users = {uid: pod for uid, pod in desired.pods.items() if _uses_claims(pod)}
        if not users and self._claims is None:
            return desired
        from kubelet_trio.managers import claim_documents, with_claim_statuses

        named = {uid: with_claim_statuses(pod) for uid, pod in users.items()}
        documents = (value for key, value in desired.objects.items() if key.kind in DEVICE_KINDS)
        self.claims.apply(named, claim_documents(documents))
        return replace(desired, pods={**desired.pods, **named})


def _nowhere(_encode: Callable[[], bytes]) -> None:
    pass


def _uses_claims(pod: Pod) -> bool:
    return is_static(pod) and bool(spec(pod).resourceClaims)
