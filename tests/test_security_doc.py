"""docs/security.md: the tests that it names exist, and the settings that it shows hold."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kubelet_trio.config import Settings
from kubelet_trio.config.load import load_settings
from kubelet_trio.config.show import encode_config
from kubelet_trio.daemon import node_api_settings
from kubelet_trio.server import Guard, HttpError, NodeAuthenticator, Request, Response, allow_all
from kubelet_trio.server.http.types import ClientPeer
from kubelet_trio.server.tls.serving import CIPHERS, TlsSettings, _make_context
from kubelet_trio.testing import TrioClock
from tests.harness.authority import Authority

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "security.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
# What the administrator has to see to, and what is no agent's.
_WITHOUT_TEST = ("4.1.1", "4.1.3", "4.1.7", "4.1.9", "firewalls")


def rows() -> list[str]:
    lines = DOC.read_text().splitlines()
    return [
        line
        for number, line in enumerate(lines)
        if line.startswith("| ") and number + 1 < len(lines) and not _is_head(lines, number)
    ]


def _is_head(lines: list[str], number: int) -> bool:
    return lines[number].startswith("| ---") or lines[number + 1].startswith("| ---")


def test_every_test_that_is_named_exists() -> None:
    named = _NAMED.findall(DOC.read_text())
    assert len(named) > 50
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        defined = [getattr(node, "name", "") for node in tree.body]
        assert name in defined, f"{path} has no {name}"


def test_every_line_names_what_shows_it() -> None:
    found = [row for row in rows() if row.count("|") > 3]
    assert len(found) > 50
    for row in found:
        is_settled = row.removeprefix("| ").startswith(_WITHOUT_TEST)
        assert bool(_NAMED.search(row)) != is_settled, row


def test_the_page_can_be_found() -> None:
    for page in ("README.md", "docs/node-api.md", "docs/configuration.md"):
        assert "security.md" in (ROOT / page).read_text(), page


@pytest.fixture
def hardened(tmp_path: Path) -> Settings:
    """What the configuration on the page says."""
    (text,) = re.findall(r"```yaml\n(.*?)```", DOC.read_text(), re.DOTALL)
    path = tmp_path / "config.yaml"
    path.write_text(text)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    return load_settings([f"--config={path}", f"--kubeconfig={kubeconfig}"])


def test_the_defaults_that_the_benchmark_asks_for() -> None:
    settings = load_settings([])
    config = json.loads(encode_config(settings.config))
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authentication"]["webhook"]["enabled"]
    assert config["authorization"]["mode"] == "Webhook"
    assert config.get("readOnlyPort", 0) == 0
    assert config["streamingConnectionIdleTimeout"] == "4h0m0s"
    assert config["eventRecordQPS"] == 50
    assert settings.flags.hostname_override == ""
    api = node_api_settings(settings)
    assert api is not None
    assert (api.anonymous, api.always_allow, api.read_only_port) == (False, False, 0)
    assert not api.is_reachable(has_reviews=False)


def test_the_configuration_of_the_page_is_taken(hardened: Settings) -> None:
    config = hardened.config
    assert (config.pod_pids_limit, config.seccomp_default) == (4096, True)
    assert (config.rotate_certificates, config.server_tls_bootstrap) == (True, True)
    api = node_api_settings(hardened)
    assert api is not None
    assert (api.anonymous, api.always_allow, api.read_only_port) == (False, False, 0)
    assert api.client_ca_file == "/etc/kubernetes/pki/ca.crt"
    assert api.options.streaming_idle_timeout == 300
    assert api.tls_bootstrap


def test_only_strong_ciphers_are_left(hardened: Settings, tmp_path: Path) -> None:
    api = node_api_settings(hardened)
    assert api is not None
    pair = Authority(tmp_path).issue("node", "node")
    settings = TlsSettings(
        pair.certificate, pair.key, None, api.min_version, tuple(api.cipher_suites)
    )
    context, _ = _make_context(settings, (pair.certificate, pair.key))
    offered = {cipher["name"] for cipher in context.get_ciphers()}
    of_tls13 = {name for name in offered if name.startswith("TLS_")}
    assert offered - of_tls13 == {CIPHERS[name] for name in api.cipher_suites}
    assert all(cipher["aead"] for cipher in context.get_ciphers())


async def test_a_refusal_is_in_the_log() -> None:
    async def answer(_: Request) -> Response:
        return Response()

    guard = Guard(answer, NodeAuthenticator(TrioClock()), allow_all, "node")
    with capture_logs() as logs, pytest.raises(HttpError, match="Unauthorized"):
        await guard.admit(Request("GET", "/pods", peer=ClientPeer("192.0.2.1")))
    assert [(line["event"], line["client"]) for line in logs] == [
        ("http.unauthorized", "192.0.2.1")
    ]
