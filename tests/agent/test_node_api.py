"""Where the kubelet API stands in the tree, and when its port is opened at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kubelet_trio.agent import NodeApiSettings
from kubelet_trio.agent.node_api import NodeApi
from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import build_agent, node_api_settings
from kubelet_trio.model import thread_offload
from kubelet_trio.server import ApiOptions, Handler, HttpError, Request

SHUT = NodeApiSettings("127.0.0.1")


@pytest.mark.parametrize(
    ("changes", "alone", "with_cluster"),
    [
        ({}, False, True),
        ({"always_allow": True}, False, True),
        ({"anonymous": True}, False, True),
        ({"client_ca_file": "/ca"}, False, True),
        ({"always_allow": True, "anonymous": True}, True, True),
        ({"always_allow": True, "client_ca_file": "/ca"}, True, True),
        ({"always_allow": True, "anonymous": True, "port": 0}, False, False),
        ({"webhook_authentication": False}, False, False),
        ({"webhook_authentication": False, "client_ca_file": "/ca"}, False, True),
    ],
)
def test_the_port_is_opened_where_somebody_may_pass(
    changes: dict[str, object], alone: bool, with_cluster: bool
) -> None:
    settings = dataclasses.replace(SHUT, **changes)  # type: ignore[arg-type]
    assert settings.is_reachable(has_reviews=False) == alone
    assert settings.is_reachable(has_reviews=True) == with_cluster


@pytest.mark.parametrize(
    ("arguments", "children"),
    [
        ((), []),
        (("--read-only-port=10255",), ["read-only"]),
        (("--authorization-mode=AlwaysAllow", "--anonymous-auth"), ["https"]),
        (("--authorization-mode=AlwaysAllow", "--client-ca-file=/ca"), ["https"]),
        (
            ("--authorization-mode=AlwaysAllow", "--anonymous-auth", "--enable-server=false"),
            [],
        ),
    ],
)
def test_a_node_on_its_own_serves_what_it_is_told_to(
    arguments: tuple[str, ...], children: list[str]
) -> None:
    tree = build_agent(load_settings(arguments), {}).declared()
    served = next(child.children for child in tree.children if child.name == "server")
    # The pod resources API is for programs of the node, and needs no port.
    assert [child.name for child in served] == [*children, "podresources"]


def test_the_configuration_reaches_the_server() -> None:
    arguments = (
        "--port=1",
        "--address=127.0.0.1",
        "--cert-dir=/pki",
        "--tls-min-version=VersionTLS13",
        "--authentication-token-webhook=false",
        "--authorization-webhook-cache-unauthorized-ttl=3s",
        "--streaming-connection-idle-timeout=5s",
        "--enable-debugging-handlers=false",
    )
    settings = node_api_settings(load_settings(arguments))
    assert settings is not None
    assert (settings.port, settings.address, settings.cert_dir) == (1, "127.0.0.1", Path("/pki"))
    assert (settings.min_version, settings.webhook_authentication) == ("VersionTLS13", False)
    assert settings.unauthorized_ttl == 3
    assert settings.options.streaming_idle_timeout == 5
    assert not settings.options.enable_debugging_handlers
    assert b'"tlsMinVersion":"VersionTLS13"' in settings.configz
    assert settings.flags["cert-dir"] == "/pki"


async def status_of(handler: Handler, path: str) -> int:
    try:
        return (await handler(Request("GET", path))).status
    except HttpError as exc:
        return exc.status


@pytest.mark.parametrize("path", ["/ui", "/ui/", "/ui/page.js", "/ui/history", "/ui/logs/a/b/c"])
async def test_the_node_page_is_behind_the_guard_and_nowhere_else(path: str) -> None:
    agent = build_agent(load_settings(["--node-ip=127.0.0.1"]), {})
    known = dataclasses.replace(SHUT, always_allow=True, client_ca_file="/ca")
    api = NodeApi(agent, known, None, thread_offload)
    assert await status_of(api._guard(), path) == 401
    assert await status_of(api._router(read_only=True), path) == 404
    plain = dataclasses.replace(known, options=ApiOptions(enable_debugging_handlers=False))
    quiet = NodeApi(agent, plain, None, thread_offload)
    assert await status_of(quiet._router(), path) == 404


async def test_why_is_for_those_who_may_read_pods() -> None:
    agent = build_agent(load_settings(["--node-ip=127.0.0.1"]), {})
    known = dataclasses.replace(SHUT, always_allow=True, client_ca_file="/ca")
    api = NodeApi(agent, known, None, thread_offload)
    assert await status_of(api._guard(), "/why/default/web") == 401
    assert await status_of(api._router(read_only=True), "/why/default/web") == 404
    with pytest.raises(HttpError, match='pods "web" not found'):
        await api._router()(Request("GET", "/why/default/web"))


async def test_who_may_gets_the_node_page() -> None:
    agent = build_agent(load_settings(["--node-ip=127.0.0.1"]), {})
    open_to_all = dataclasses.replace(SHUT, always_allow=True, anonymous=True)
    guard = NodeApi(agent, open_to_all, None, thread_offload)._guard()
    assert await status_of(guard, "/ui") == 302
    assert await status_of(guard, "/ui/") == 200
    assert await status_of(guard, "/ui/logs/default/none/main") == 404
