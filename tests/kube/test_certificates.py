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

from kubelet_trio.kube import CertificateError, CertificateRequest, CertificateStore
from kubelet_trio.kube.certificates import CLIENT_SIGNER, Signed, describe, pki, sign
from kubelet_trio.model import thread_offload
from kubelet_trio.testing import FakeKube
from tests.harness.authority import Authority

WANTED = CertificateRequest(CLIENT_SIGNER, "system:node:node")


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
    kube, authority = FakeKube(), Authority(tmp_path)
    got: list[Signed] = []

    async def ask() -> None:
        got.append(await sign(kube, WANTED))

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
    file.write_text(got[0].pem)
    ssl.create_default_context().load_cert_chain(file)  # refuses a key that does not fit
    assert got[0].certificate.is_for(WANTED)


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
    assert await store.held() is None
    pair = Authority(tmp_path).issue("node", "system:node:node")
    await store.put("first", 0.0)
    await store.put(pair.certificate.read_text() + pair.key.read_text(), 60.0)
    assert store.current.is_symlink()
    assert store.current.resolve().name == "kubelet-client-1970-01-01-00-01-00.pem"
    assert stat.S_IMODE(store.current.stat().st_mode) == 0o600
    held = await store.held()
    assert held is not None
    assert held.not_after - held.not_before == 24 * 3600 + 300


async def test_a_certificate_says_for_whom_it_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("n", "system:node:n", "system:nodes", hosts=("n.example", "192.0.2.1"))
    told = await describe(pki, pair.certificate.read_bytes(), pair.key.read_bytes())
    assert told.name == "system:node:n"
    assert told.groups == {"system:nodes"}
    assert told.hosts == {"n.example"}
    assert told.addresses == {"192.0.2.1"}
    assert told.ends == told.not_after
    ca = authority.certificate.read_bytes()
    assert (await describe(pki, ca + pair.certificate.read_bytes())).name == "kubelet-trio-test-ca"
    other = authority.issue("other", "other")
    with pytest.raises(CertificateError, match="the key does not match the certificate"):
        await describe(pki, pair.certificate.read_bytes(), other.key.read_bytes())
    with pytest.raises(CertificateError, match="making a key or certificate"):
        await describe(pki, b"nothing of the kind")


async def test_what_is_in_another_file_stands_in(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("node", "system:node:node")
    store = CertificateStore(tmp_path / "pki", "kubelet-client", thread_offload)
    held = await store.held(pair.certificate)
    assert held is not None
    assert held.name == "system:node:node"
