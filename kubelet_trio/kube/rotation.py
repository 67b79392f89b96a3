"""Renews a certificate when 70 to 90 % of its life are over, or when something else is wanted.

Source: client-go's certificate manager. A request that nobody signs is followed by a new one
after 15 minutes; failures by waits of 2 s, doubling to 32 s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio
from trio_util import AsyncValue, move_on_when

from kubelet_trio.kube.api import KubeApi, KubeError, KubeUnavailableError
from kubelet_trio.kube.certificates import (
    Certificate,
    CertificateError,
    CertificateStore,
    Wanted,
    sign,
)
from kubelet_trio.kube.kubeconfig import KubeconfigError
from kubelet_trio.model import Backoff, WallClock, get_logger

log = get_logger()

# Seconds between two looks at the wall clock: somebody may set it while we sleep.
_LOOK = 3600.0

Asking = Callable[[Certificate | None], AbstractAsyncContextManager[KubeApi]]


def renewal_due(held: Certificate | None, wanted: Wanted, share: float) -> float:
    """Return when (Unix seconds) to ask for a new one, `share` of the old one's life being over.

    At once for none, or one for somebody else.
    """
    if held is None or not held.is_for(wanted):
        return float("-inf")
    return held.not_before + share * (held.not_after - held.not_before)


@dataclass(slots=True)
class Outcomes:
    """Who is told of what becomes of renewals: `renewed` of the certificate before."""

    renewed: Callable[[Certificate | None], None] = lambda _before: None
    failed: Callable[[], None] = lambda: None


class Rotation:
    """One certificate. One task at a time may `get` or `run`."""

    def __init__(
        self,
        store: CertificateStore,
        wanted: AsyncValue[Wanted | None],
        asking: Asking,
        clock: WallClock,
        outcomes: Outcomes | None = None,
        share: Callable[[], float] = lambda: random.uniform(0.7, 0.9),
    ) -> None:
        """Args:
        wanted: what to ask for; None while that is not known.
        asking: opens the API server, given the certificate that is held.
        share: of a certificate's life, after which it is renewed.
        """
        self._store = store
        self._wanted = wanted
        self._asking = asking
        self._clock = clock
        self.outcomes = outcomes or Outcomes()
        self._share = share
        self._backoff = Backoff(2.0, 32.0, jitter=0.1, reset_after=120.0)
        self.held: Certificate | None = None

    def is_valid(self) -> bool:
        """Whether there is one that has not ended."""
        return self.held is not None and self._clock.time() < self.held.not_after

    async def run(self) -> None:
        """Renew `held` for ever."""
        while True:
            share = self._share()
            while not await self._is_due(share):
                pass
            await self.get()

    async def get(self) -> None:
        """Get a new one, however long it takes."""
        while True:
            wanted = await self._known()
            is_renewed = False
            async with move_on_when(
                self._wanted.wait_value, lambda now, w=wanted: now != w
            ) as other:
                is_renewed = await self._renew(wanted)
            if is_renewed:
                return
            if not other.cancelled_caught:
                await trio.sleep(self._backoff.next_delay(trio.current_time()))

    async def _known(self) -> Wanted:
        wanted: Wanted | None = await self._wanted.wait_value(lambda now: now is not None)
        assert wanted is not None
        return wanted

    async def _is_due(self, share: float) -> bool:
        """Wait until renewal is due; False where something else is wanted or it is time to look."""
        wanted = await self._known()
        left = renewal_due(self.held, wanted, share) - self._clock.time()
        if left <= 0:
            return True
        with trio.move_on_after(min(left, _LOOK)):
            await self._wanted.wait_value(lambda now: now != wanted)
        return False

    async def _renew(self, wanted: Wanted) -> bool:
        store = self._store
        try:
            async with self._asking(self.held) as api:
                signed = await sign(api, wanted, store.make)
            await store.put(signed.pem, self._clock.time())
        except (
            CertificateError,
            KubeconfigError,
            KubeError,
            KubeUnavailableError,
            OSError,
        ) as exc:
            log.error("certificates.not_renewed", signer=wanted.signer, error=str(exc))
            self.outcomes.failed()
            return False
        before, self.held = self.held, signed.certificate
        log.info("certificates.renewed", file=str(store.current))
        self.outcomes.renewed(before)
        return True
