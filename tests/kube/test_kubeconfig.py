"""Kubeconfigs: what they say, and what is wrong with them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubelet_trio.kube import ClientConfig, KubeconfigError, load_kubeconfig
from kubelet_trio.kube.kubeconfig import DataOrFile, ExecPlugin, parse_kubeconfig

CLUSTER: dict[str, Any] = {"server": "https://kube.example:6443/"}
V1 = "client.authentication.k8s.io/v1"
BETA = "client.authentication.k8s.io/v1beta1"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def text(
    cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **root: Any
) -> bytes:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "clusters": [{"name": "c", "cluster": {**CLUSTER, **(cluster or {})}}],
        "contexts": [
            {"name": "other", "context": {"cluster": "nowhere", "user": "u"}},
            {"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "apps"}},
        ],
        "users": [{"name": "u", "user": user or {}}],
        **root,
    }
    return yaml.safe_dump(document).encode()


def parsed(
    cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None
) -> ClientConfig:
    return parse_kubeconfig(text(cluster, user), Path("/etc/kubernetes/kubelet.conf"))


def test_the_current_context_counts() -> None:
    config = parsed({"tls-server-name": "inside", "disable-compression": True}, {"token": "t"})
    assert config == ClientConfig(
        server="https://kube.example:6443",
        origin="/etc/kubernetes/kubelet.conf",
        context="main",
        namespace="apps",
        tls_server_name="inside",
        disable_compression=True,
        token="t",
    )


def test_paths_are_relative_to_the_file() -> None:
    config = parsed(
        {"certificate-authority": "pki/ca.crt"},
        {"client-certificate": "/var/lib/c.pem", "client-key": "k.pem", "tokenFile": "token"},
    )
    assert config.ca.file == Path("/etc/kubernetes/pki/ca.crt")
    assert config.certificate.file == Path("/var/lib/c.pem")
    assert config.key.file == Path("/etc/kubernetes/k.pem")
    assert config.token_file == Path("/etc/kubernetes/token")


def test_inline_data_goes_before_files() -> None:
    config = parsed(
        {"certificate-authority": "ca.crt", "certificate-authority-data": encoded("authority")},
        {"client-certificate-data": encoded("c"), "client-key-data": encoded("k")},
    )
    assert config.ca == DataOrFile(
        data=b"authority", field="clusters[0].cluster.certificate-authority-data"
    )
    assert (config.certificate.read(), config.key.read()) == (b"c", b"k")


def test_user_and_password_and_another_self() -> None:
    config = parsed(
        {"proxy-url": "http://proxy.example:3128"},
        {
            "username": "me",
            "password": "p",
            "as": "you",
            "as-groups": ["a", "b"],
            "as-user-extra": {"why": ["because"]},
        },
    )
    assert (config.username, config.password) == ("me", "p")
    assert config.proxy_url == "http://proxy.example:3128"
    assert config.impersonate == (
        ("Impersonate-User", "you"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-why", "because"),
    )


def test_an_exec_plugin() -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    config = parsed(
        {"extensions": [{"name": "other", "extension": 1}, extension]},
        {
            "exec": {
                "apiVersion": V1,
                "command": "./get-token",
                "args": ["--cluster", "c"],
                "env": [{"name": "A", "value": "1"}],
                "interactiveMode": "Never",
                "provideClusterInfo": True,
                "installHint": "install it",
            }
        },
    )
    assert config.exec_plugin == ExecPlugin(
        command="/etc/kubernetes/get-token",
        args=("--cluster", "c"),
        env=(("A", "1"),),
        api_version=V1,
        install_hint="install it",
        provide_cluster_info=True,
        cluster_config={"audience": "x"},
    )
    config = parsed(user={"exec": {"apiVersion": BETA, "command": "aws"}})
    assert config.exec_plugin == ExecPlugin(command="aws", api_version=BETA)


@pytest.mark.parametrize(
    ("cluster", "user", "field", "problem"),
    [
        ({"server": ""}, {}, "clusters[0].cluster.server", "Required value"),
        ({"server": "kube.example:6443"}, {}, "clusters[0].cluster.server", "expected an http"),
        ({"server": "https://[::1"}, {}, "clusters[0].cluster.server", "expected an http"),
        ({"server": "https://kube:six"}, {}, "clusters[0].cluster.server", "expected an http"),
        ({"proxy-url": "http://[::1"}, {}, "clusters[0].cluster.proxy-url", "expected an http"),
        ({"server": 5}, {}, "clusters[0].cluster.server", "expected a string, got int"),
        ({"proxy-url": "socks5://p"}, {}, "clusters[0].cluster.proxy-url", "expected an http"),
        ({"certificate-authority-data": "%"}, {},
         "clusters[0].cluster.certificate-authority-data", "not base64"),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "ca"}, {},
         "clusters[0].cluster.insecure-skip-tls-verify", "is not allowed"),
        ({"insecure-skip-tls-verify": "yes"}, {},
         "clusters[0].cluster.insecure-skip-tls-verify", "expected true or false, got 'yes'"),
        ({}, {"client-certificate": "c"}, "users[0].user.client-key", "Required value"),
        ({}, {"client-key": "k"}, "users[0].user.client-certificate", "Required value"),
        ({}, {"username": "me", "token": "t"}, "users[0].user.username", "along with a token"),
        ({}, {"auth-provider": {"name": "gcp"}}, "users[0].user.auth-provider", "not supported"),
        ({}, {"as-groups": ["a"]}, "users[0].user.as", "Required value"),
        ({}, {"exec": {"apiVersion": "v2", "command": "x"}},
         "users[0].user.exec.apiVersion", "expected one of"),
        ({}, {"exec": {"apiVersion": V1, "command": "x"}},
         "users[0].user.exec.interactiveMode", "expected one of Never"),
        ({}, {"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Always"}},
         "users[0].user.exec.interactiveMode", "no terminal"),
        ({}, {"exec": {"apiVersion": BETA}}, "users[0].user.exec.command", "Required value"),
        ({}, {"exec": {"apiVersion": BETA, "command": "x", "env": [{"value": "1"}]}},
         "users[0].user.exec.env[0].name", "Required value"),
    ],
)  # fmt: skip
def test_errors_name_file_and_field(
    cluster: dict[str, Any], user: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(KubeconfigError) as refused:
        parsed(cluster, user)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"/etc/kubernetes/kubelet.conf: {field}: ")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"current-context": ""}, "current-context"),
        ({"current-context": "gone"}, "contexts"),
        ({"current-context": "other"}, "clusters"),
        ({"users": []}, "users"),
        ({"contexts": {}}, "contexts"),
        ({"kind": "Pod"}, "kind"),
    ],
)
def test_what_does_not_fit_together(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(KubeconfigError) as refused:
        parse_kubeconfig(text(**changes), Path("conf"))
    assert refused.value.field == field


@pytest.mark.parametrize("content", [b"", b"- a", b"a: [", b"\xff\xfe\x00"])
def test_what_is_no_kubeconfig(content: bytes) -> None:
    with pytest.raises(KubeconfigError, match=r"^conf: "):
        parse_kubeconfig(content, Path("conf"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="missing: No such file"):
        load_kubeconfig(tmp_path / "missing")
    (tmp_path / "there").write_bytes(text())
    assert load_kubeconfig(tmp_path / "there").context == "main"


def test_a_proxys_password_is_not_shown() -> None:
    with pytest.raises(KubeconfigError) as refused:
        parsed({"proxy-url": "ftp://me:secret@proxy.example"})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "document",
    [b"a: " + b"9" * 5000, b"[" * 300_000 + b"]" * 300_000, b"a: 2024-13-41", b"\xff", b"{a: *b}"],
)
def test_what_no_yaml_can_say_is_an_error_of_the_file(document: bytes) -> None:
    with pytest.raises(KubeconfigError, match=r"kubelet\.conf: no YAML: "):
        parse_kubeconfig(document, Path("/etc/kubernetes/kubelet.conf"))
