"""Trust anchors and certificates of pods, in a whole agent."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.certificates_v1beta1 import ClusterTrustBundle, PodCertificateRequest
from lightkube.models.core_v1 import Pod, ServiceAccount
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from kubelet_trio.objects.pem import certificates_pem
from tests.agent.test_cluster import NAME, World

BUNDLE = {"clusterTrustBundle": {"name": "ca", "path": "ca.pem"}}
CERTIFICATE = {
    "podCertificate": {
        "signerName": "example.com/s",
        "keyType": "ED25519",
        "credentialBundlePath": "both.pem",
    }
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def add_pod(world: World, *sources: object) -> Path:
    """Add a pod with a projected volume; return the volume's directory."""
    world.kube.add(ServiceAccount(metadata=ObjectMeta(name="default", namespace="default")))
    document = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "nodeName": NAME,
            "containers": [
                {
                    "name": "web",
                    "image": "web",
                    "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
                }
            ],
            "volumes": [{"name": "tls", "projected": {"sources": list(sources)}}],
        },
    }
    made = world.kube.add(msgspec.convert(document, Pod))
    root = world.host.base / "root/pods" / pod_uid(made)
    return root / "volumes/kubernetes.io~projected/tls"


def bundle(text: bytes) -> str:
    return certificates_pem([text]).decode()


async def test_changed_trust_anchors_reach_a_running_pod(
    world: World, autojump_clock: MockClock
) -> None:
    world.gates = {"trust_bundles": True}
    meta, spec = {"name": "ca"}, {"trustBundle": bundle(b"one")}
    async with world.running():
        directory = add_pod(world, BUNDLE)
        await trio.sleep(30)
        assert not world.is_ready()
        document = {"metadata": meta, "spec": spec}
        world.kube.add(msgspec.convert(document, ClusterTrustBundle))
        await world.wait(world.is_ready)
        assert (directory / "ca.pem").read_text() == bundle(b"one")
        world.kube.change(ClusterTrustBundle, "ca", {"spec": {"trustBundle": bundle(b"two")}})
        await trio.sleep(1)
        assert (directory / "ca.pem").read_text() == bundle(b"two")


def issue(world: World) -> None:
    """Issue the pod's certificate for an hour."""
    (request,) = world.kube.all(PodCertificateRequest)
    assert request.metadata is not None

    def moment(later: float) -> str:
        at = datetime.datetime.fromtimestamp(world.clock.time() + later, datetime.UTC)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    condition = {
        "type": "Issued",
        "status": "True",
        "reason": "Issued",
        "message": "",
        "lastTransitionTime": moment(0),
    }
    status = {
        "conditions": [condition],
        "certificateChain": bundle(b"leaf"),
        "notBefore": moment(0),
        "beginRefreshAt": moment(2400),
        "notAfter": moment(3600),
    }
    name = request.metadata.name or ""
    world.kube.change(PodCertificateRequest, name, {"status": status}, subresource="status")


async def test_a_pod_starts_with_its_certificate(world: World) -> None:
    # In real time: the key is made in a process.
    world.gates = {"pod_certificates": True}
    async with world.running() as agent:
        directory = add_pod(world, CERTIFICATE)
        with trio.fail_after(60):
            await world.kube.wait_until(lambda kube: bool(kube.all(PodCertificateRequest)))
            assert not world.is_ready()
            issue(world)
            await world.kube.wait_until(lambda _kube: world.is_ready())
        text = (directory / "both.pem").read_text()
        assert text.startswith("-----BEGIN PRIVATE KEY-----\n")
        assert text.endswith(bundle(b"leaf"))
        page = await agent.metrics.page()
        line = 'kubelet_podcertificate_states{signer_name="example.com/s",state="fresh"} 1'
        assert line in page.replace(".0\n", "\n").splitlines()


@pytest.mark.parametrize(
    ("source", "gate"),
    [(BUNDLE, "ClusterTrustBundleProjection"), (CERTIFICATE, "PodCertificateRequest")],
)
async def test_without_its_gate_a_source_is_not_read(
    world: World, autojump_clock: MockClock, source: object, gate: str
) -> None:
    async with world.running() as agent:
        add_pod(world, source)
        await trio.sleep(5)
        messages = [event.message or "" for event in agent.parts.reports.events.ring.events()]
        assert any(gate in message for message in messages)
        assert not world.is_ready()
        resources = {request.resource for request in world.kube.requests}
        assert not resources & {"clustertrustbundles", "podcertificaterequests"}
