"""Certificates asked of a fake API server, signed by the test as a controller would."""

from __future__ import annotations

import base64
import datetime
import ssl
import stat
from pathlib import Path

import pytest
import trio
from lightkube.models.certificates_v1 import CertificateSigningRequest

from kubelet_trio.kube import CertificateError, CertificateStore, Rotation, Wanted
from kubelet_trio.kube.certificates import CLIENT_SIGNER, Validity, sign
from kubelet_trio.model import SystemClock, thread_offload
from kubelet_trio.testing import FakeKube
from tests.harness.authority import Authority

WANTED = Wanted(CLIENT_SIGNER, "system:node:node")


def approve(kube: FakeKube, authority: Authority, seconds: float = 3600) -> None:
    """Sign the requests that have no certificate."""
    for found in kube.all(CertificateSigningRequest):
        assert found.metadata is not None
        assert found.spec is not None
        if found.status is None or not found.status.certificate:
            lifetime = datetime.timedelta(seconds=seconds)
            signed = authority.sign(base64.b64decode(found.spec.request), lifetime)
            status = {"certificate": base64.b64encode(signed).decode()}
            kube.change(
                CertificateSigningRequest,
                found.metadata.name or "",
                {"status": status},
                subresource="status",
            )


async def wait_requests(kube: FakeKube, count: int) -> None:
    with trio.fail_after(60):
        await kube.wait_until(lambda k: len(k.all(CertificateSigningRequest)) == count)


async def test_a_certificate_is_asked_for_and_comes_with_its_key(tmp_path: Path) -> None:
    kube, authority, pems = FakeKube(), Authority(tmp_path), []

    async def ask() -> None:
        pems.append(await sign(kube, WANTED))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_requests(kube, 1)
            (found,) = kube.all(CertificateSigningRequest)
            assert found.spec is not None
            assert found.spec.signerName == "kubernetes.io/kube-apiserver-client-kubelet"
            assert found.spec.usages == ["digital signature", "client auth"]
            approve(kube, authority)
    file = tmp_path / "both.pem"
    file.write_text(pems[0])
    ssl.create_default_context().load_cert_chain(file)  # refuses a key that does not fit


async def test_a_denied_request_is_an_error_that_names_it() -> None:
    kube = FakeKube()

    async def deny() -> None:
        await wait_requests(kube, 1)
        (found,) = kube.all(CertificateSigningRequest)
        assert found.metadata is not None
        denied = {"type": "Denied", "status": "True", "reason": "No", "message": "not you"}
        kube.change(
            CertificateSigningRequest,
            found.metadata.name or "",
            {"status": {"conditions": [denied]}},
            subresource="approval",
        )

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deny)
            with pytest.raises(CertificateError, match=r"csr-.* is denied: No not you"):
                await sign(kube, WANTED)


async def test_files_are_roots_alone_and_the_link_goes_to_the_newest(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path / "pki", "kubelet-client", thread_offload)
    assert await store.validity() is None
    pair = Authority(tmp_path).issue("node", "system:node:node")
    await store.put("first", 0.0)
    await store.put(pair.certificate.read_text() + pair.key.read_text(), 60.0)
    assert store.current.is_symlink()
    assert store.current.resolve().name == "kubelet-client-1970-01-01T00-01-00Z.pem"
    assert stat.S_IMODE(store.current.stat().st_mode) == 0o600
    validity = await store.validity()
    assert validity is not None
    assert validity.not_after - validity.not_before == 24 * 3600 + 300


def test_renewal_is_due_when_that_share_of_the_life_is_over() -> None:
    assert Validity(1000.0, 2000.0).renew_at(0.7) == 1700.0


async def test_a_certificate_is_renewed_without_anybody_asking(tmp_path: Path) -> None:
    kube, authority = FakeKube(), Authority(tmp_path)
    store = CertificateStore(tmp_path / "pki", "kubelet-client", thread_offload)
    rotation = Rotation(kube, store, WANTED, SystemClock())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(rotation.run)
            await wait_requests(kube, 1)
            approve(kube, authority, seconds=-200)  # of its 100 s, none are left
            await wait_requests(kube, 2)
            assert store.current.exists()
            nursery.cancel_scope.cancel()
