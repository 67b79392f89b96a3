"""Renews a certificate after 70 to 90 % of its lifetime, or when a different one is wanted.

A request that is not signed within 15 minutes is replaced by a new one. Failures are retried after
2 s, doubling to 32 s. Source: client-go's certificate manager.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio
from trio_util import AsyncValue, move_on_when

from kubelet_trio.kube.api import KubeApi
from kubelet_trio.kube.certificates import Certificate, CertificateRequest, CertificateStore, sign
from kubelet_trio.kube.errors import API_ERRORS, CertificateError, KubeconfigError
from kubelet_trio.model import Backoff, WallClock, get_logger

log = get_logger()

# Seconds between two looks at the wall clock: it may be set while the task sleeps.
_CHECK_PERIOD = 3600.0
_LEAST_PERIOD = 1.0  # seconds between two renewals, as upstream

OpenApi = Callable[[Certificate | None], AbstractAsyncContextManager[KubeApi]]


def renewal_due(held: Certificate | None, wanted: CertificateRequest, share: float) -> float:
    """Return when (Unix seconds) to renew a certificate: after `share` of its lifetime.

    At once if there is none, or if it is not the one that is wanted.
    """
    if held is None or not held.is_for(wanted):
        return float("-inf")
    return held.not_before + share * (held.not_after - held.not_before)


@dataclass(slots=True)
class RenewalHooks:
    """Called after each attempt; `renewed` gets the previous certificate."""

    renewed: Callable[[Certificate | None], None] = lambda _before: None
    failed: Callable[[], None] = lambda: None


class Rotation:
    """Keeps one certificate valid. Only one task at a time may call `get` or `run`."""

    def __init__(
        self,
        store: CertificateStore,
        wanted: AsyncValue[CertificateRequest | None],
        open_api: OpenApi,
        clock: WallClock,
        outcomes: RenewalHooks | None = None,
        share: Callable[[], float] = lambda: random.uniform(0.7, 0.9),
        held: Certificate | None = None,
    ) -> None:
        """Prepare a rotation; nothing is requested before `get` or `run`.

        Args:
            store: the certificate's files.
            wanted: the certificate to request; None while that is not known.
            open_api: opens the API server, given the current certificate.
            clock: the wall clock.
            outcomes: called after each attempt.
            share: returns the share of a certificate's lifetime after which it is renewed.
            held: the certificate that was found, if any.
        """
        self._store = store
        self._wanted = wanted
        self._open_api = open_api
        self._clock = clock
        self.outcomes = outcomes or RenewalHooks()
        self._share = share
        self._backoff = Backoff(2.0, 32.0, jitter=0.1, reset_after=120.0)
        self.held = held

    def hold(self, certificate: Certificate | None) -> None:
        """Take over the certificate that was found."""
        self.held = certificate

    def is_valid(self) -> bool:
        """Return whether there is a certificate that has not expired."""
        return self.held is not None and self._clock.time() < self.held.not_after

    async def run(self) -> None:
        """Renew the certificate until cancelled."""
        while True:
            share = self._share()
            while not await self._is_due(share):
                pass
            await self.get()
            # A certificate may be due at once, if the node's clock is far ahead of the signer's.
            await trio.sleep(_LEAST_PERIOD)

    async def get(self) -> None:
        """Get a new certificate; retry until that succeeds."""
        while True:
            wanted = await self._known()
            is_renewed = False
            # A request for names that the node no longer has is abandoned at once.
            async with move_on_when(
                self._wanted.wait_value, lambda now, w=wanted: now != w
            ) as other:
                is_renewed = await self._renew(wanted)
            if is_renewed:
                return
            if not other.cancelled_caught:
                await trio.sleep(self._backoff.next_delay(trio.current_time()))

    async def _known(self) -> CertificateRequest:
        wanted: CertificateRequest | None = await self._wanted.wait_value(
            lambda now: now is not None
        )
        assert wanted is not None
        return wanted

    async def _is_due(self, share: float) -> bool:
        """Wait for the renewal time; return False if the caller is to check again.

        That is when `wanted` has changed, or after a while, as the clock may have been set.
        """
        wanted = await self._known()
        left = renewal_due(self.held, wanted, share) - self._clock.time()
        if left <= 0:
            return True
        with trio.move_on_after(min(left, _CHECK_PERIOD)):
            await self._wanted.wait_value(lambda now: now != wanted)
        return False

    async def _renew(self, wanted: CertificateRequest) -> bool:
        store = self._store
        try:
            async with self._open_api(self.held) as api:
                signed = await sign(api, wanted, store.make)
            await store.put(signed.pem, self._clock.time())
        except (*API_ERRORS, CertificateError, KubeconfigError, OSError) as exc:
            log.error("certificates.not_renewed", signer=wanted.signer, error=str(exc))
            self.outcomes.failed()
            return False
        # Only after the file: a restart must find what requests already use.
        before, self.held = self.held, signed.certificate
        log.info("certificates.renewed", file=str(store.current))
        self.outcomes.renewed(before)
        return True
