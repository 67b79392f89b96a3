"""A node with claims: drivers that keep the rules, in virtual time, with real files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio
from lightkube.models.resource_v1 import ResourceClaim

from kubelet_trio.managers import CheckpointKeeper
from kubelet_trio.managers.claims import (
    ClaimDevice,
    ClaimDriver,
    ClaimError,
    ClaimKey,
    ClaimRef,
    ResourceClaims,
    load_claims,
)
from kubelet_trio.managers.claims.state import NO_CLAIMS
from kubelet_trio.model import Meter, Offload, PodUid, inline_offload
from tests.managers.claims.objects import GPUS, NICS


@dataclass
class Driver:
    """A driver that prepares for some time, and keeps what is prepared.

    It refuses two calls for one claim at a time.
    """

    name: str
    takes: float = 1.0
    prepared: set[str] = field(default_factory=set)  # UIDs of claims
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    broken: str = ""  # the error of a whole call
    refused: dict[str, str] = field(default_factory=dict)  # errors, by a claim's name
    skips: set[str] = field(default_factory=set)  # names of claims
    extra: str = ""  # a UID that it answers for without being asked
    busy: set[str] = field(default_factory=set)

    async def prepare(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[ClaimDevice, ...] | str]:
        answers: dict[str, tuple[ClaimDevice, ...] | str] = {}
        for claim in await self._call("prepare", claims):
            if claim.name in self.refused:
                answers[claim.uid] = self.refused[claim.name]
            else:
                self.prepared.add(claim.uid)
                answers[claim.uid] = (self.device(claim.name),)
        if self.extra:
            answers[self.extra] = ()
        return answers

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        answers = {}
        for claim in await self._call("unprepare", claims):
            answers[claim.uid] = self.refused.get(claim.name, "")
            if claim.name not in self.refused:
                self.prepared.discard(claim.uid)
        if self.extra:
            answers[self.extra] = ""
        return answers

    def device(self, claim: str) -> ClaimDevice:
        return ClaimDevice("pool", "d0", ("r0",), (f"{self.name}/x={claim}",))

    async def _call(self, kind: str, claims: Sequence[ClaimRef]) -> list[ClaimRef]:
        uids = {claim.uid for claim in claims}
        assert not uids & self.busy, "two calls for one claim at a time"
        self.busy |= uids
        self.calls.append((kind, tuple(claim.name for claim in claims)))
        try:
            await trio.sleep(self.takes)
            if self.broken:
                raise ClaimError(self.broken)
        finally:
            self.busy -= uids
        return [claim for claim in claims if claim.name not in self.skips]


class Node:
    """The claims of a node. `reboot` replaces the agent, but not the world."""

    def __init__(self, root: Path, offload: Offload = inline_offload) -> None:
        self.root = root
        self.offload = offload
        self.gpus, self.nics = Driver(GPUS), Driver(NICS)
        self.registered: dict[str, Driver] = {GPUS: self.gpus, NICS: self.nics}
        self.objects: dict[str, ResourceClaim] = {}
        self.known: set[PodUid] | None = set()
        self.meter = Meter()
        self.claims = self._begin()

    def _begin(self) -> ResourceClaims:
        return ResourceClaims(
            load_claims(self.root) or NO_CLAIMS,
            CheckpointKeeper(self.root, self.offload),
            self,
            self,
            self.meter,
        )

    def reboot(self) -> None:
        self.claims = self._begin()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run what the agent's tree would."""
        async with trio.open_nursery() as nursery:
            for child in self.claims.children(lambda: self.known):
                await nursery.start(child.run)
            task_status.started()

    def add(self, *claims: ResourceClaim) -> None:
        for claim in claims:
            assert claim.metadata is not None
            self.objects[claim.metadata.name or ""] = claim

    # ClaimSource and ClaimDrivers

    async def get(self, key: ClaimKey) -> ResourceClaim:
        await trio.sleep(0.1)
        if key.name not in self.objects:
            raise ClaimError(f"fetch ResourceClaim {key.name}: not found")
        return self.objects[key.name]

    def find(self, driver: str) -> ClaimDriver:
        if driver not in self.registered:
            raise ClaimError(f"DRA driver {driver} is not registered")
        return self.registered[driver]
