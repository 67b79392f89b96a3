"""Certificates for pods: requested of a fake API server, and answered by the test as a signer."""

from __future__ import annotations

import base64
import datetime
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from lightkube.models.certificates_v1beta1 import PodCertificateRequest
from lightkube.models.core_v1 import Node, Pod, ServiceAccount
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.kube import CertificateError, ProvenKey, proven_key
from kubelet_trio.model import EventType, ObjectRef, PodUid, pod_uid
from kubelet_trio.objects import (
    ClusterPodCertificates,
    CredentialBundle,
    NoPodCertificates,
    ObjectError,
)
from kubelet_trio.objects.pem import certificates_pem
from kubelet_trio.supervision import DynamicSupervisor
from kubelet_trio.testing import FakeKube, TrioClock

SIGNER = "example.com/signer"
DAY, HOUR, MINUTE = 86400.0, 3600.0, 60.0


class Events:
    """Keeps what was emitted."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, str]] = []

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        assert (involved.kind, type_) == ("Pod", "Warning")
        self.kept.append((involved.name, reason, message))


class World:
    """An API server with a node's pod, and the node's certificates for it."""

    def __init__(self) -> None:
        self.kube, self.clock, self.events = FakeKube(), TrioClock(), Events()
        self.numbers = itertools.count(1)
        self.key_problem = ""
        self.node = self.kube.add(Node(metadata=ObjectMeta(name="node")))
        self.account = self.kube.add(
            ServiceAccount(metadata=ObjectMeta(name="robot", namespace="default"))
        )
        self.pod = self.add_pod("web")
        self.changes: list[PodUid] = []
        self.tree = DynamicSupervisor("projections")
        self.certificates = self.restart()

    def restart(self) -> ClusterPodCertificates:
        """Return what a new agent has: nothing is kept."""
        return ClusterPodCertificates(
            self.kube.node("node"),
            self.tree,
            "node",
            lambda: self.kube.find(Node, "node"),
            self.clock,
            self.events,
            self.changes.append,
            make_key=self.make_key,
        )

    def add_pod(self, name: str, **source: Any) -> Pod:
        projection = {"signerName": SIGNER, "keyType": "ED25519", **source}
        sources = [{"secret": {"name": "s"}}, {"podCertificate": projection}]
        document = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": "node",
                "serviceAccountName": "robot",
                "containers": [{"name": "main", "image": "web"}],
                "volumes": [{"name": "tls", "projected": {"sources": sources}}],
            },
        }
        return self.kube.add(msgspec.convert(document, Pod))

    async def make_key(self, key_type: str) -> ProvenKey:
        if self.key_problem:
            raise CertificateError(self.key_problem)
        number = next(self.numbers)
        return ProvenKey(f"{key_type} {number}\n", base64.b64encode(b"%d" % number).decode())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.tree.run)
            yield
            nursery.cancel_scope.cancel()

    async def get(self, pod: Pod | None = None) -> CredentialBundle:
        return await self.certificates.credentials(pod or self.pod, "tls", 1)

    @property
    def requests(self) -> list[PodCertificateRequest]:
        """The requests, oldest first."""
        found = self.kube.all(PodCertificateRequest)
        return sorted(found, key=lambda r: base64.b64decode(r.spec.stubPKCS10Request))

    def answer(self, kind: str, reason: str = "", message: str = "", **status: Any) -> None:
        """Answer the newest request with a condition."""
        newest = self.requests[-1]
        assert newest.metadata is not None
        condition = {
            "type": kind,
            "status": "True",
            "reason": reason or kind,
            "message": message,
            "lastTransitionTime": self._time(0),
        }
        self.kube.change(
            PodCertificateRequest,
            newest.metadata.name or "",
            {"status": {"conditions": [condition], **status}},
            subresource="status",
        )

    def issue(self, content: bytes = b"chain", lifetime: float = DAY) -> None:
        """Issue the newest request, to be renewed after 80 % of its lifetime."""
        chain = f"words\n{certificates_pem([content]).decode()}words\n"
        self.answer(
            "Issued",
            certificateChain=chain,
            notBefore=self._time(0),
            beginRefreshAt=self._time(0.8 * lifetime),
            notAfter=self._time(lifetime),
        )

    def _time(self, later: float) -> str:
        moment = datetime.datetime.fromtimestamp(self.clock.time() + later, datetime.UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    async def issued(self, content: bytes = b"chain", lifetime: float = DAY) -> CredentialBundle:
        """Let the pod's first certificate be requested and issued; return it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._issue_soon, content, lifetime)
            bundle = await self.get()
        return bundle

    async def _issue_soon(self, content: bytes, lifetime: float) -> None:
        await trio.sleep(2)
        self.issue(content, lifetime)

    def states(self) -> dict[str, int]:
        return {state: n for (_, state), n in self.certificates.states().items()}


@pytest.fixture
def world() -> World:
    return World()


async def test_a_certificate_is_requested_and_comes_with_its_key(
    world: World, autojump_clock: MockClock
) -> None:
    world.pod = world.add_pod(
        "api", maxExpirationSeconds=7200, userAnnotations={"example.com/a": "b"}
    )
    async with world.running():
        bundle = await world.issued(b"leaf")
        assert bundle == CredentialBundle(b"ED25519 1\n", certificates_pem([b"leaf"]))
        (request,) = world.requests
        assert msgspec.to_builtins(request.spec) == {
            "signerName": SIGNER,
            "podName": "api",
            "podUID": pod_uid(world.pod),
            "serviceAccountName": "robot",
            "serviceAccountUID": world.account.metadata and world.account.metadata.uid,
            "nodeName": "node",
            "nodeUID": world.node.metadata and world.node.metadata.uid,
            "maxExpirationSeconds": 7200,
            "stubPKCS10Request": base64.b64encode(b"1").decode(),
            "unverifiedUserAnnotations": {"example.com/a": "b"},
        }
        assert request.metadata is not None
        assert (request.metadata.name or "").startswith("req-")
        assert request.metadata.ownerReferences is not None
        (owner,) = request.metadata.ownerReferences
        assert (owner.kind, owner.name, owner.uid) == ("Pod", "api", pod_uid(world.pod))
        assert world.states() == {"fresh": 1}
        # It is the same for every call.
        assert await world.get() == bundle
        assert len(world.requests) == 1


async def test_a_pod_waits_for_the_signer_and_is_woken(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        began = trio.current_time()
        for _ in range(2):
            with pytest.raises(ObjectError, match=r"^credential bundle is not issued yet$"):
                await world.get()
            assert trio.current_time() - began == pytest.approx(10)
        assert world.states() == {"not_yet_issued": 1}
        assert world.changes == []
        await trio.sleep(HOUR)
        world.issue()
        await trio.sleep(1)
        assert world.changes == [pod_uid(world.pod)]
        assert (await world.get()).chain == certificates_pem([b"chain"])
        assert len(world.requests) == 1


@pytest.mark.parametrize(
    ("kind", "verb", "told"), [("Denied", "denied", "was denied"), ("Failed", "failed", "failed")]
)
async def test_a_refusal_is_for_good(
    world: World, autojump_clock: MockClock, kind: str, verb: str, told: str
) -> None:
    async with world.running():
        with pytest.raises(ObjectError):
            await world.get()
        world.answer(kind, "UnsupportedKeyType", 'use "RSA"')
        await trio.sleep(DAY)
        with pytest.raises(ObjectError) as caught:
            await world.get()
        text = 'reason="UnsupportedKeyType"{} message="use \\"RSA\\""'
        assert str(caught.value) == (
            f"PodCertificateRequest was permanently {verb}: {text.format('')}"
        )
        (request,) = world.requests
        name = f"default/{request.metadata and request.metadata.name}"
        message = f"PodCertificateRequest {name} {told}, {text.format(',')}"
        assert world.events.kept == [("web", kind, message)]
        assert world.changes == [pod_uid(world.pod)]
        assert world.states() == {verb: 1}


async def test_it_is_renewed_with_a_new_key_in_time(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        first = await world.issued()
        await trio.sleep(0.8 * DAY - MINUTE)
        assert len(world.requests) == 1
        await trio.sleep(7 * MINUTE)
        assert len(world.requests) == 2
        # Until the next one is issued the pod keeps what it has.
        assert await world.get() == first
        world.changes.clear()
        world.issue(b"second")
        await trio.sleep(1)
        assert await world.get() == CredentialBundle(b"ED25519 2\n", certificates_pem([b"second"]))
        assert world.changes == [pod_uid(world.pod)]
        assert world.events.kept == []


async def test_a_renewal_that_is_denied_ends_it(world: World, autojump_clock: MockClock) -> None:
    async with world.running():
        await world.issued()
        await trio.sleep(0.8 * DAY + 6 * MINUTE)
        world.answer("Denied", "Why", "not")
        await trio.sleep(1)
        with pytest.raises(ObjectError, match="permanently denied"):
            await world.get()
        await trio.sleep(DAY)
        assert len(world.requests) == 2


OVERDUE = ("web", "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
EXPIRED = ("web", "CertificateExpired", "PodCertificate expired")


async def test_a_renewal_that_comes_too_late_is_told(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        first = await world.issued()
        await trio.sleep(0.8 * DAY + 9 * MINUTE)
        assert world.events.kept == []
        await trio.sleep(10 * MINUTE)
        assert world.events.kept == [OVERDUE]
        assert world.states() == {"overdue_for_refresh": 1}
        await trio.sleep(0.2 * DAY)
        assert world.events.kept == [OVERDUE, EXPIRED]
        assert world.states() == {"expired": 1}
        assert await world.get() == first
        world.issue(b"late")
        await trio.sleep(1)
        assert world.states() == {"fresh": 1}
        await trio.sleep(0.7 * DAY)
        assert world.events.kept == [OVERDUE, EXPIRED]


async def test_lateness_is_told_while_the_server_is_away(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        first = await world.issued()
        world.kube.go_down()
        await trio.sleep(DAY + HOUR)
        assert world.events.kept == [OVERDUE, EXPIRED]
        assert await world.get() == first
        world.kube.come_back()
        await trio.sleep(10 * MINUTE)
        assert len(world.requests) == 2


async def test_a_deleted_request_is_made_again(world: World, autojump_clock: MockClock) -> None:
    async with world.running():
        with pytest.raises(ObjectError):
            await world.get()
        (request,) = world.requests
        assert request.metadata is not None
        world.kube.remove(PodCertificateRequest, request.metadata.name or "")
        await trio.sleep(MINUTE)
        assert len(world.requests) == 1
        world.issue()
        await trio.sleep(1)
        assert (await world.get()).key == b"ED25519 2\n"


async def test_a_failure_is_told_and_retried(world: World, autojump_clock: MockClock) -> None:
    async with world.running():
        world.key_problem = 'unknown key type "DSA"'
        with pytest.raises(ObjectError) as caught:
            await world.get()
        assert str(caught.value) == ('credential bundle is not issued yet: unknown key type "DSA"')
        world.key_problem = ""
        world.kube.remove(ServiceAccount, "robot")
        await trio.sleep(10 * MINUTE)
        with pytest.raises(ObjectError, match=r'serviceaccounts "robot" not found|relationship'):
            await world.get()
        assert world.requests == []
        world.kube.add(ServiceAccount(metadata=ObjectMeta(name="robot", namespace="default")))
        await trio.sleep(10 * MINUTE)
        assert len(world.requests) == 1
        with pytest.raises(ObjectError, match=r"is not issued yet$"):
            await world.get()


async def test_without_the_nodes_object_nothing_is_requested(
    world: World, autojump_clock: MockClock
) -> None:
    world.kube.remove(Node, "node")
    async with world.running():
        with pytest.raises(ObjectError, match='node "node" not found'):
            await world.get()
        assert world.requests == []


async def test_a_request_is_watched_while_the_server_comes_and_goes(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        with pytest.raises(ObjectError):
            await world.get()
        world.kube.go_down()
        await trio.sleep(HOUR)
        world.kube.come_back()
        world.issue()
        await trio.sleep(2 * MINUTE)
        assert (await world.get()).key == b"ED25519 1\n"
        assert len(world.requests) == 1


async def test_nothing_is_left_of_a_pod_that_is_gone(
    world: World, autojump_clock: MockClock
) -> None:
    other = world.add_pod("other")
    async with world.running():
        await world.issued()
        with pytest.raises(ObjectError):
            await world.get(other)
        assert len(world.tree.names()) == 3
        world.certificates.forget(pod_uid(world.pod))
        world.certificates.forget(pod_uid(other))
        await trio.sleep(1)
        assert world.tree.names() == ()
        assert world.certificates.states() == {}
        # A pod of the same UID, after its volumes were torn down, gets a certificate of its own.
        with pytest.raises(ObjectError):
            await world.get()
        assert len(world.requests) == 3


async def test_a_restarted_agent_requests_anew(world: World, autojump_clock: MockClock) -> None:
    async with world.running():
        await world.issued()
        world.certificates.forget(pod_uid(world.pod))
        world.certificates = world.restart()
        await trio.sleep(1)
        assert (await world.issued(b"second")).key == b"ED25519 2\n"
        assert len(world.requests) == 2


async def test_a_standalone_node_has_none() -> None:
    with pytest.raises(ObjectError, match="need an API server"):
        await NoPodCertificates().credentials(Pod(), "tls", 0)


@pytest.mark.parametrize(
    ("key_type", "size"),
    [
        ("RSA3072", 3072),
        ("RSA4096", 4096),
        ("ECDSAP256", 256),
        ("ECDSAP384", 384),
        ("ECDSAP521", 521),
        ("ED25519", None),
    ],
)
async def test_keys_of_every_type_prove_their_possession(key_type: str, size: int | None) -> None:
    made = await proven_key(key_type)
    assert made.key.startswith("-----BEGIN PRIVATE KEY-----\n")
    key: Any = serialization.load_pem_private_key(made.key.encode(), None)
    assert getattr(key, "key_size", None) == size
    request = x509.load_der_x509_csr(base64.b64decode(made.request))
    assert request.is_signature_valid
    assert list(request.subject) == []
    assert list(request.extensions) == []
    public = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert request.public_key().public_bytes(*public) == key.public_key().public_bytes(*public)


async def test_an_unknown_key_type_is_told() -> None:
    with pytest.raises(CertificateError, match='unknown key type "DSA"'):
        await proven_key("DSA")
