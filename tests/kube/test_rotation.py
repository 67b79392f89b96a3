"""When a certificate is renewed, and what happens while nobody signs."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.certificates_v1 import CertificateSigningRequest
from trio.testing import MockClock
from trio_util import AsyncValue

from kubelet_trio.kube import (
    Certificate,
    CertificateRequest,
    CertificateStore,
    KubeApi,
    RenewalHooks,
    Rotation,
)
from kubelet_trio.kube.certificates import CLIENT_SIGNER
from kubelet_trio.kube.rotation import renewal_due
from kubelet_trio.model import inline_offload
from kubelet_trio.testing import FakeKube, TrioClock
from tests.kube.fake_pki import Signer, fake_pki

WANTED = CertificateRequest(
    CLIENT_SIGNER, "system:node:node", hosts=("node",), addresses=("192.0.2.1",)
)
HELD = Certificate(
    1000.0,
    2000.0,
    "system:node:node",
    frozenset({"system:nodes"}),
    frozenset({"node", "other"}),
    frozenset({"192.0.2.1"}),
)


@given(st.floats(0.7, 0.9))
def test_a_certificate_is_renewed_when_that_share_of_its_life_is_over(share: float) -> None:
    assert renewal_due(HELD, WANTED, share) == pytest.approx(1000 + share * 1000)


@pytest.mark.parametrize(
    "wanted",
    [
        CertificateRequest(CLIENT_SIGNER, "system:node:other"),
        CertificateRequest(CLIENT_SIGNER, "system:node:node", groups=("system:masters",)),
        CertificateRequest(CLIENT_SIGNER, "system:node:node", hosts=("node", "new")),
        CertificateRequest(CLIENT_SIGNER, "system:node:node", addresses=("192.0.2.1", "192.0.2.2")),
    ],
)
def test_one_that_lacks_something_is_renewed_at_once(wanted: CertificateRequest) -> None:
    assert renewal_due(HELD, wanted, 0.7) == float("-inf")


def test_one_that_says_more_than_is_wanted_will_do() -> None:
    assert renewal_due(HELD, CertificateRequest(CLIENT_SIGNER, "system:node:node"), 0.7) == 1700


class Bed:
    """A rotation at a fake API server."""

    def __init__(self, base: Path) -> None:
        self.kube, self.clock = FakeKube(), TrioClock()
        self.signer = Signer(self.kube, self.clock)
        self.store = CertificateStore(base, "kubelet-client", inline_offload, fake_pki)
        self.wanted: AsyncValue[CertificateRequest | None] = AsyncValue(WANTED)
        self.failures = 0
        self.renewed: list[Certificate | None] = []
        self.count = AsyncValue(0)
        outcomes = RenewalHooks(self._renew, self._fail)
        self.rotation = Rotation(
            self.store, self.wanted, self._asking, self.clock, outcomes, share=lambda: 0.75
        )

    def _renew(self, before: Certificate | None) -> None:
        self.renewed.append(before)
        self.count.value += 1

    def _fail(self) -> None:
        self.failures += 1

    @asynccontextmanager
    async def _asking(self, _held: Certificate | None) -> AsyncIterator[KubeApi]:
        yield self.kube

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with trio.fail_after(1e6):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.rotation.run)
                yield
                nursery.cancel_scope.cancel()

    async def wait_renewed(self, count: int) -> Certificate:
        await self.count.wait_value(lambda now: now >= count)
        assert self.rotation.held is not None
        return self.rotation.held


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


async def test_it_is_renewed_for_ever_each_time_with_a_new_key(
    bed: Bed, autojump_clock: MockClock
) -> None:
    keys = set()
    async with bed.running():
        for round_ in range(1, 4):
            request = await bed.signer.wait_requests(round_)
            began = bed.clock.time()
            bed.signer.sign(request)
            held = await bed.wait_renewed(round_)
            assert held.not_after - held.not_before == 3600
            assert began - 1 <= held.not_before <= began + 1
            keys.add(bed.store.current.read_text().splitlines()[-1])
        assert len(keys) == 3
        await bed.signer.wait_requests(4)
        assert bed.clock.time() - held.not_before == pytest.approx(2700, abs=5)
    assert bed.renewed[0] is None
    assert bed.renewed[1] is not None


async def test_one_that_has_expired_when_it_comes_is_no_reason_to_hurry(
    bed: Bed, autojump_clock: MockClock
) -> None:
    """A node whose clock is years ahead would ask for the next one at once, for ever."""
    bed.signer.lifetime = -1.0

    async def sign_all() -> None:
        for count in itertools.count(1):
            bed.signer.sign(await bed.signer.wait_requests(count))
            assert count < 50

    async with bed.running(), trio.open_nursery() as nursery:
        nursery.start_soon(sign_all)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert 5 <= len(bed.signer.requests) <= 11


async def test_what_is_denied_is_asked_for_again(bed: Bed, autojump_clock: MockClock) -> None:
    async with bed.running():
        bed.signer.deny(await bed.signer.wait_requests(1))
        bed.signer.sign(await bed.signer.wait_requests(2))
        await bed.wait_renewed(1)
    assert bed.failures == 1


async def test_what_nobody_signs_is_asked_for_again_after_a_quarter_of_an_hour(
    bed: Bed, autojump_clock: MockClock
) -> None:
    async with bed.running():
        await bed.signer.wait_requests(1)
        began = trio.current_time()
        await bed.signer.wait_requests(2)
        assert 900 <= trio.current_time() - began <= 910


async def test_a_request_that_somebody_deletes_is_made_again(
    bed: Bed, autojump_clock: MockClock
) -> None:
    async with bed.running():
        request = await bed.signer.wait_requests(1)
        await trio.sleep(5)
        assert request.metadata is not None
        await bed.kube.delete(CertificateSigningRequest, request.metadata.name or "")
        await bed.signer.wait_requests(1)
        await bed.kube.wait_until(lambda _kube: bool(bed.signer.requests))
    assert bed.failures == 1


async def test_a_certificate_of_another_key_is_not_taken(
    bed: Bed, autojump_clock: MockClock
) -> None:
    async with bed.running():
        first = await bed.signer.wait_requests(1)
        assert first.spec is not None
        other = await fake_pki(do="request", name="x", groups=[], hosts=[], addresses=[])
        first.spec.request = base64.b64encode(other["request"].encode()).decode()
        bed.signer.sign(first)
        await bed.kube.wait_until(lambda _kube: len(bed.signer.requests) == 2)
    assert bed.failures == 1
    assert not bed.store.current.exists()


async def test_other_addresses_give_up_the_request_and_ask_anew(
    bed: Bed, autojump_clock: MockClock
) -> None:
    async with bed.running():
        await bed.signer.wait_requests(1)
        bed.wanted.value = CertificateRequest(
            CLIENT_SIGNER, "system:node:node", addresses=("192.0.2.9",)
        )
        bed.signer.sign(await bed.signer.wait_requests(2))
        held = await bed.wait_renewed(1)
        assert held.addresses == {"192.0.2.9"}
        # What is held does no longer do.
        bed.wanted.value = CertificateRequest(
            CLIENT_SIGNER, "system:node:node", addresses=("192.0.2.10",)
        )
        bed.signer.sign(await bed.signer.wait_requests(3))
        assert (await bed.wait_renewed(2)).addresses == {"192.0.2.10"}
    assert bed.failures == 0


async def test_nothing_is_asked_for_while_nobody_knows_what(
    bed: Bed, autojump_clock: MockClock
) -> None:
    bed.wanted.value = None
    async with bed.running():
        await trio.sleep(3600)
        assert bed.signer.requests == []
        bed.wanted.value = WANTED
        await bed.signer.wait_requests(1)


async def test_a_server_that_is_away_costs_time_alone(bed: Bed, autojump_clock: MockClock) -> None:
    bed.kube.go_down()
    async with bed.running():
        await trio.sleep(600)
        assert 15 <= bed.failures <= 25  # every 32 s and up to a tenth more
        bed.kube.come_back()
        bed.signer.sign(await bed.signer.wait_requests(1))
        await bed.wait_renewed(1)


async def test_a_wall_clock_set_forward_is_noticed_within_the_hour(
    bed: Bed, autojump_clock: MockClock
) -> None:
    bed.signer.lifetime = 1e6
    async with bed.running():
        bed.signer.sign(await bed.signer.wait_requests(1))
        await bed.wait_renewed(1)
        bed.clock.step(9e5)
        began = trio.current_time()
        await bed.signer.wait_requests(2)
        assert trio.current_time() - began <= 3600
