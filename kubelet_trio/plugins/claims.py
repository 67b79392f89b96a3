"""Keeps which socket's plugin has a name, and lets the others wait for it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from kubelet_trio.plugins.scan import SocketIdentity
from kubelet_trio.plugins.types import PluginOffer

NameKey = tuple[str, ...]  # type and name, and the socket where a name may have several plugins


@dataclass(eq=False, slots=True)
class Claim:
    """The registration of one socket's plugin, from its claim of the name to its end."""

    socket: str
    identity: SocketIdentity
    offer: PluginOffer
    is_exclusive: bool
    lost: trio.Event = field(default_factory=trio.Event)  # a newer one has the name
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def key(self) -> NameKey:
        key = (self.offer.type, self.offer.name)
        return key if self.is_exclusive else (*key, self.socket)

    def is_newer_than(self, other: Claim) -> bool:
        return (self.identity, self.socket) > (other.identity, other.socket)


class NameClaims:
    """The registered plugins, one for each name (or for each name and socket)."""

    def __init__(self) -> None:
        self._held: dict[NameKey, Claim] = {}

    @property
    def held(self) -> tuple[Claim, ...]:
        return tuple(self._held.values())

    def take(self, claim: Claim) -> bool:
        """Give a name to this claim, unless a newer one holds it; return whether it has it now."""
        held = self._held.get(claim.key)
        if held is not None and held.is_newer_than(claim):
            return False
        self._held[claim.key] = claim
        if held is not None:
            held.lost.set()
        return True

    def release(self, claim: Claim) -> None:
        """Give the name up; nothing happens if another claim holds it."""
        if self._held.get(claim.key) is claim:
            del self._held[claim.key]
        claim.ended.set()

    async def wait_turn(self, claim: Claim) -> None:
        """Wait until no newer claim holds the name."""
        while (held := self._held.get(claim.key)) is not None and held.is_newer_than(claim):
            await held.ended.wait()

    async def wait_given_up(self, offer: PluginOffer | None) -> None:
        """Wait until the plugin that has a name gives it up; for ever if none has it."""
        held = self._held.get((offer.type, offer.name)) if offer is not None else None
        await (held.ended if held is not None else trio.Event()).wait()

    def holder(self, claim: Claim) -> Claim | None:
        """Return the newer claim that holds the name, None if this one may take it."""
        held = self._held.get(claim.key)
        return held if held is not None and held.is_newer_than(claim) else None
