"""Which credentials a node starts with: kubeconfig, bootstrap kubeconfig, or what it got before."""

from __future__ import annotations

import base64
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubelet_trio.kube import CertificateStore, KubeconfigError, client_access, load_kubeconfig
from kubelet_trio.kube.bootstrap import ClientAccess, write_kubeconfig
from kubelet_trio.model import inline_offload
from kubelet_trio.testing import EPOCH
from tests.kube.fake_pki import certificate, fake_pki

NOW = EPOCH
VALID = certificate(NOW - 100, NOW + 100, "KEY\n", name="valid")
ENDED = certificate(NOW - 100, NOW - 1, "KEY\n", name="ended")
OTHERS = certificate(NOW - 100, NOW + 100, "another key", name="others")


class Wall:
    def time(self) -> float:
        return NOW


class Node:
    """The files of one node."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.kubeconfig, self.first = base / "kubelet.conf", base / "bootstrap.conf"
        (base / "ca.pem").write_text("authority")
        self.store = CertificateStore(base / "pki", "kubelet-client", inline_offload, fake_pki)

    def write(self, path: Path, **user: Any) -> None:
        cluster = {
            "server": "https://kube.example:6443",
            "certificate-authority": "ca.pem",
            "tls-server-name": "kube",
            "proxy-url": "http://proxy.example:3128",
        }
        document = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(document))

    def write_pair(self, text: str) -> dict[str, str]:
        (self.base / "node.pem").write_text(text)
        (self.base / "node.key").write_text("KEY\n")
        return {"client-certificate": "node.pem", "client-key": "node.key"}

    async def access(self, *, bootstrap: bool = True, rotate: bool = False) -> ClientAccess:
        first = self.first if bootstrap else None
        return await client_access(self.kubeconfig, self.store, Wall(), first=first, rotate=rotate)


def inline(text: str) -> dict[str, str]:
    return {
        "client-certificate-data": base64.b64encode(text.encode()).decode(),
        "client-key-data": base64.b64encode(b"KEY\n").decode(),
    }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.write(made.first, token="may-ask")
    return made


@pytest.mark.parametrize("rotate", [False, True])
async def test_a_kubeconfig_with_a_certificate_that_holds_wins(node: Node, rotate: bool) -> None:
    node.write(node.kubeconfig, **node.write_pair(VALID))
    before = node.kubeconfig.read_text()
    node.first.unlink()  # it is not even looked at
    access = await node.access(rotate=rotate)
    assert not access.is_missing
    assert access.config.certificate.file == node.base / "node.pem"
    assert node.kubeconfig.read_text() == before


@pytest.mark.parametrize(
    "user",
    [
        None,  # no kubeconfig
        {"token": "no certificate"},
        inline(ENDED),
        inline(VALID + ENDED),  # a part of it has ended
        inline(OTHERS),  # the key does not fit
        inline("no certificate"),
        {"client-certificate": "gone.pem", "client-key": "gone.key"},
    ],
)
async def test_any_other_is_replaced_when_the_certificate_has_come(
    node: Node, user: dict[str, str] | None
) -> None:
    if user is not None:
        node.write(node.kubeconfig, **user)
    access = await node.access()
    assert access.is_missing
    assert access.first == node.first
    assert access.config.issued == node.store.current
    assert (access.config.token, access.config.server) == ("", "https://kube.example:6443")


async def test_a_certificate_that_the_node_got_before_is_used_again(node: Node) -> None:
    await node.store.put(f"{VALID}KEY\n", NOW)
    access = await node.access()
    assert not access.is_missing
    assert load_kubeconfig(node.kubeconfig).certificate.file == node.store.current


async def test_one_that_has_ended_is_not(node: Node) -> None:
    await node.store.put(f"{ENDED}KEY\n", NOW)
    assert (await node.access()).is_missing


async def test_the_kubeconfig_is_the_same_cluster_with_the_new_user(node: Node) -> None:
    access = await node.access()
    write_kubeconfig(node.kubeconfig, access.config, node.store.current)
    assert stat.S_IMODE(node.kubeconfig.stat().st_mode) == 0o600
    written = load_kubeconfig(node.kubeconfig)
    first = load_kubeconfig(node.first)
    assert written.certificate.file == written.key.file == node.store.current
    for field in ("server", "tls_server_name", "proxy_url"):
        assert getattr(written, field) == getattr(first, field)
    assert (written.ca.file, written.token) == (node.base / "ca.pem", "")


async def test_files_that_cannot_be_used_are_named_with_the_field(node: Node) -> None:
    node.first.unlink()
    with pytest.raises(KubeconfigError, match=f"{re.escape(str(node.first))}: No such file"):
        await node.access()
    node.first.write_text("current-context: x")
    with pytest.raises(KubeconfigError, match=r"bootstrap.conf: contexts: no context 'x'"):
        await node.access()
    with pytest.raises(KubeconfigError, match=r"kubelet.conf: No such file"):
        await node.access(bootstrap=False)


async def test_a_kubeconfig_that_cannot_be_read_is_not_taken_for_none(node: Node) -> None:
    node.kubeconfig.mkdir()
    with pytest.raises(KubeconfigError, match="Is a directory"):
        await node.access()


async def test_without_either_switch_the_kubeconfig_is_all(node: Node) -> None:
    node.write(node.kubeconfig, **node.write_pair(ENDED))
    access = await node.access(bootstrap=False)
    assert access.config.issued is None
    assert not access.is_missing


async def test_rotation_puts_what_the_node_got_before_all_else(node: Node) -> None:
    await node.store.put(f"{VALID}KEY\n", NOW)
    node.write(node.kubeconfig, token="t")
    access = await node.access(bootstrap=False, rotate=True)
    assert access.config.issued == node.store.current
    assert access.held is not None
    assert access.held.name == "valid"
    assert not access.is_initial


async def test_an_inline_certificate_is_kept_and_renewed_at_once(node: Node) -> None:
    node.write(node.kubeconfig, **inline(VALID))
    access = await node.access(bootstrap=False, rotate=True)
    assert access.is_initial
    assert node.store.current.read_text() == f"{VALID}KEY\n"
    # The next start goes by what the node has.
    assert not (await node.access(bootstrap=False, rotate=True)).is_initial


async def test_a_new_inline_certificate_takes_the_place_of_one_that_has_ended(node: Node) -> None:
    await node.store.put(f"{ENDED}KEY\n", NOW)
    node.write(node.kubeconfig, **inline(VALID))
    access = await node.access(bootstrap=False, rotate=True)
    assert access.held is not None
    assert access.held.name == "valid"
    assert node.store.current.read_text() == f"{VALID}KEY\n"


async def test_files_of_others_are_used_until_the_first_renewal(node: Node) -> None:
    node.write(node.kubeconfig, **node.write_pair(VALID))
    access = await node.access(bootstrap=False, rotate=True)
    assert (access.is_initial, node.store.current.exists()) == (False, False)
    assert access.held is not None
    assert access.held.name == "valid"
