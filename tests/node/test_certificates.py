"""The node's certificates in the agent: who asks for them, when, and what waits meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Node, NodeAddress, NodeStatus
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_util import AsyncValue

from kubelet_trio.kube import (
    AwaitedCertificate,
    Certificate,
    CertificateStore,
    ClientAccess,
    ClientConfig,
    KubeApi,
    load_kubeconfig,
)
from kubelet_trio.kube.credentials import Credentials
from kubelet_trio.kube.errors import CredentialsError
from kubelet_trio.model import Meter, inline_offload
from kubelet_trio.node.certificates import (
    ClientCertificate,
    ServingCertificate,
    ServingFiles,
    awaited_certificate,
    serving_wanted,
    ttl,
)
from kubelet_trio.testing import FakeKube, TrioClock
from tests.kube.fake_pki import Signer, certificate, fake_pki


def addresses(*pairs: tuple[str, str]) -> list[NodeAddress]:
    return [NodeAddress(type=kind, address=address) for kind, address in pairs]


@pytest.mark.parametrize(
    ("told", "hosts", "ips"),
    [
        ([("InternalIP", "192.0.2.1"), ("Hostname", "n")], ("n",), ("192.0.2.1",)),
        ([("Hostname", "192.0.2.1")], (), ("192.0.2.1",)),
        (
            [
                ("ExternalIP", "192.0.2.9"),
                ("InternalIP", "2001:DB8::1"),
                ("InternalIP", "192.0.2.10"),
                ("InternalIP", "192.0.2.9"),
                ("ExternalDNS", "b.example"),
                ("InternalDNS", "a.example"),
                ("Hostname", "a.example"),
                ("InternalIP", ""),
                ("InternalIP", "no address"),
            ],
            ("a.example", "b.example"),
            ("192.0.2.10", "192.0.2.9", "2001:db8::1"),
        ),
    ],
)
def test_a_serving_certificate_is_for_all_names_and_addresses(
    told: list[tuple[str, str]], hosts: tuple[str, ...], ips: tuple[str, ...]
) -> None:
    wanted = serving_wanted("n", addresses(*told))
    assert wanted is not None
    assert (wanted.hosts, wanted.addresses) == (hosts, ips)
    assert (wanted.signer, wanted.name) == ("kubernetes.io/kubelet-serving", "system:node:n")
    assert wanted.groups == ("system:nodes",)
    assert wanted.usages == ["digital signature", "server auth"]


@pytest.mark.parametrize("told", [[], [("Hostname", "n")], [("ExternalDNS", "n.example")]])
def test_none_is_asked_for_without_an_ip_address(told: list[tuple[str, str]]) -> None:
    assert serving_wanted("n", addresses(*told)) is None


def test_a_gauge_shows_whole_seconds_and_infinity_for_none() -> None:
    assert ttl(Certificate(0, 100.9), 50.0) == 50
    assert ttl(None, 50.0) == inf
    assert ttl(Certificate(0, 40), 50.0) == inf


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nobody tells; time is virtual
        await trio.sleep(1)


class Bed:
    """A node's certificates at a fake API server, on which the node may be unknown yet."""

    def __init__(self, base: Path) -> None:
        self.kube, self.clock, self.meter = FakeKube(), TrioClock(), Meter()
        self.signer = Signer(self.kube, self.clock)
        self.base = base
        self.store = CertificateStore(base / "pki", "kubelet-client", inline_offload, fake_pki)
        self.config = ClientConfig(
            "https://kube", origin=str(base / "kubelet.conf"), issued=self.store.current
        )
        self.first = base / "first.conf"
        self.first.write_text(FIRST)
        self.asked_as: list[str] = []
        self.awaited = AwaitedCertificate()

    @asynccontextmanager
    async def open_api(self, config: ClientConfig) -> AsyncIterator[KubeApi]:
        self.asked_as.append(config.token)
        yield self.kube

    def client(self, access: ClientAccess, *, rotate: bool = False) -> ClientCertificate:
        self.awaited = awaited_certificate(access)
        return ClientCertificate(
            access,
            "node",
            self.clock,
            self.kube,
            self.awaited,
            self.meter,
            rotate=rotate,
            open_api=self.open_api,
        )

    def missing(self) -> ClientAccess:
        return ClientAccess(self.config, self.store, first=self.first, is_missing=True)


FIRST = """\
clusters: [{name: c, cluster: {server: "https://kube"}}]
users: [{name: u, user: {token: may-ask}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


async def test_requests_wait_for_the_first_certificate(bed: Bed, autojump_clock: MockClock) -> None:
    client = bed.client(bed.missing())
    went_through = trio.Event()

    async def ask() -> None:
        await bed.awaited.wait()
        went_through.set()

    with trio.fail_after(1e5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(client.run)
            request = await bed.signer.wait_requests(1)
            await trio.sleep(600)
            assert not went_through.is_set()
            assert not Path(bed.config.origin).exists()
            bed.signer.sign(request)
    assert went_through.is_set()
    assert bed.asked_as == ["may-ask"]
    assert load_kubeconfig(Path(bed.config.origin)).certificate.file == bed.store.current


async def test_they_fail_when_nobody_gets_it_any_more(bed: Bed, autojump_clock: MockClock) -> None:
    client = bed.client(bed.missing())
    failures = []

    async def ask() -> None:
        try:
            await Credentials(bed.config, awaited=bed.awaited).refresh()
        except CredentialsError as exc:
            failures.append(str(exc))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        with trio.move_on_after(100):
            await client.run()
    assert failures == ["there is no client certificate yet"]
    # The next life asks again, and requests wait again.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        bed.signer.sign(await bed.signer.wait_requests(2))
    await bed.awaited.wait()


async def test_with_rotation_the_next_one_is_asked_for_as_the_node(
    bed: Bed, autojump_clock: MockClock
) -> None:
    client = bed.client(bed.missing(), rotate=True)
    with trio.fail_after(1e5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            bed.signer.sign(await bed.signer.wait_requests(1))
            bed.signer.sign(await bed.signer.wait_requests(2))
            await wait_all_tasks_blocked()
            assert bed.asked_as == ["may-ask"]
            nursery.cancel_scope.cancel()


async def test_one_that_ended_unnoticed_is_got_with_the_bootstrap_kubeconfig(
    bed: Bed, autojump_clock: MockClock
) -> None:
    held = Certificate(bed.clock.time() - 100, bed.clock.time() - 10, "system:node:node")
    client = bed.client(ClientAccess(bed.config, bed.store, held, bed.first), rotate=True)
    with trio.fail_after(1e5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await bed.signer.wait_requests(1)
            nursery.cancel_scope.cancel()
    assert bed.asked_as == ["may-ask"]


@pytest.mark.parametrize(("is_initial", "within"), [(True, (0, 10)), (False, (7e5, 9e5 + 10))])
async def test_the_kubeconfigs_own_is_replaced_at_once(
    bed: Bed, autojump_clock: MockClock, is_initial: bool, within: tuple[float, float]
) -> None:
    now = bed.clock.time()
    held = Certificate(now, now + 1e6, "system:node:node", frozenset({"system:nodes"}))
    access = ClientAccess(bed.config, bed.store, held, is_initial=is_initial)
    client = bed.client(access, rotate=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await bed.signer.wait_requests(1)
        nursery.cancel_scope.cancel()
    earliest, latest = within
    assert earliest <= bed.clock.time() - now <= latest


async def test_a_bootstrap_kubeconfig_that_goes_away_is_waited_for(
    bed: Bed, autojump_clock: MockClock
) -> None:
    bed.first.unlink()
    client = bed.client(bed.missing(), rotate=True)
    with trio.fail_after(1e5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await trio.sleep(100)
            bed.first.write_text(FIRST)
            await bed.signer.wait_requests(1)
            nursery.cancel_scope.cancel()
    errors = dict(bed.meter.counters("kubelet_certificate_manager_client_expiration_renew_errors"))
    assert errors[()] >= 4


async def test_the_serving_certificate_follows_the_nodes_addresses(
    bed: Bed, autojump_clock: MockClock
) -> None:
    value: AsyncValue[Node | None] = AsyncValue(None)
    store = CertificateStore(bed.base, "kubelet-server", inline_offload, fake_pki)
    files = ServingFiles(store)
    serving = ServingCertificate(files, "node", bed.clock, bed.kube, value, bed.meter)
    (child,) = serving.children()

    def put(*pairs: tuple[str, str]) -> None:
        status = NodeStatus(addresses=addresses(*pairs))
        value.value = Node(metadata=ObjectMeta(name="node"), status=status)

    async def wait_held(*ips: str) -> None:
        def is_held() -> bool:
            held = serving.rotation.held
            return held is not None and held.addresses == set(ips)

        await eventually(is_held)

    with trio.fail_after(1e5):
        async with trio.open_nursery() as nursery:
            await nursery.start(child.run)
            await trio.sleep(100)
            assert bed.signer.requests == []
            put(("Hostname", "node"))
            await trio.sleep(100)
            assert bed.signer.requests == []
            put(("InternalIP", "192.0.2.1"), ("Hostname", "node"))
            bed.signer.sign(await bed.signer.wait_requests(1))
            await wait_held("192.0.2.1")
            assert [name for name, _, left in serving.ttls() if 3500 < left <= 3600] == [
                "kubelet_certificate_manager_server_ttl_seconds"
            ]
            # Fewer are no reason for another, more are.
            put(("InternalIP", "192.0.2.1"))
            await trio.sleep(100)
            assert len(bed.signer.requests) == 1
            put(("InternalIP", "192.0.2.1"), ("InternalIP", "2001:db8::1"))
            bed.signer.sign(await bed.signer.wait_requests(2))
            await wait_held("192.0.2.1", "2001:db8::1")
            nursery.cancel_scope.cancel()
    [(_, ages)] = bed.meter.histograms("kubelet_certificate_manager_server_rotation_seconds")
    assert ages.count == 1


async def test_the_seconds_left_of_the_nodes_certificate_are_told(bed: Bed) -> None:
    now = bed.clock.time()
    held = Certificate(now, now + 1000.5, "system:node:node", frozenset({"system:nodes"}))
    access = ClientAccess(bed.config, bed.store, held)
    left = list(bed.client(access, rotate=True).ttls())
    assert [(name, labels) for name, labels, _ in left] == [
        ("kubelet_certificate_manager_client_ttl_seconds", ())
    ]
    assert 990 < left[0][2] <= 1000


async def test_a_serving_certificate_that_is_not_renewed_is_counted(
    bed: Bed, autojump_clock: MockClock
) -> None:
    status = NodeStatus(addresses=addresses(("InternalIP", "192.0.2.1")))
    node: AsyncValue[Node | None] = AsyncValue(
        Node(metadata=ObjectMeta(name="node"), status=status)
    )
    store = CertificateStore(bed.base, "kubelet-server", inline_offload, fake_pki)
    serving = ServingCertificate(ServingFiles(store), "node", bed.clock, bed.kube, node, bed.meter)
    (child,) = serving.children()
    with trio.fail_after(1e5):
        async with trio.open_nursery() as nursery:
            await nursery.start(child.run)
            bed.signer.deny(await bed.signer.wait_requests(1))
            await bed.signer.wait_requests(2)
            nursery.cancel_scope.cancel()
    assert dict(bed.meter.counters("kubelet_server_expiration_renew_errors"))[()] >= 1


async def test_the_given_certificate_stands_in_until_it_is_due(
    bed: Bed, autojump_clock: MockClock
) -> None:
    now = bed.clock.time()
    given, ip = bed.base / "given.pem", "192.0.2.1"
    given.write_text(
        certificate(
            now, now + 1000, name="system:node:node", groups=["system:nodes"], addresses=[ip]
        )
    )
    status = NodeStatus(addresses=addresses(("InternalIP", ip)))
    value: AsyncValue[Node | None] = AsyncValue(Node(status=status))
    store = CertificateStore(bed.base, "kubelet-server", inline_offload, fake_pki)
    files = ServingFiles(store, given)
    serving = ServingCertificate(files, "node", bed.clock, bed.kube, value, bed.meter)
    async with trio.open_nursery() as nursery:
        await nursery.start(serving.run)
        await bed.signer.wait_requests(1)
        nursery.cancel_scope.cancel()
    assert 700 <= bed.clock.time() - now <= 901
