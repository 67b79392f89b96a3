"""Which addresses are the node's."""

from __future__ import annotations

import socket
import threading

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.node import addresses, host_ips, look_up
from kubelet_trio.node.addresses import is_own, own_problem


def no_route(family: socket.AddressFamily, towards: str) -> str:
    return ""


def routes(family: socket.AddressFamily, towards: str) -> str:
    return "10.0.0.1" if family == socket.AF_INET else "fd00::1"


@pytest.mark.parametrize(
    ("node_ip", "name", "looked_up", "expected"),
    [
        ("192.0.2.4", "10.9.9.9", ("10.0.0.2",), ("192.0.2.4",)),
        ("192.0.2.4, fd00::4", "node", (), ("192.0.2.4", "fd00::4")),
        ("", "10.9.9.9", ("10.0.0.2",), ("10.9.9.9",)),
        # Found ones: exactly one, IPv4 before IPv6, and the name's before the route's.
        ("", "node", ("10.0.0.2", "10.0.0.3"), ("10.0.0.2",)),
        ("", "node", ("fd00::2", "10.0.0.2"), ("10.0.0.2",)),
        ("", "node", ("fd00::2",), ("fd00::2",)),
        ("0.0.0.0", "node", (), ("10.0.0.1",)),
        ("::", "node", ("10.0.0.2", "fd00::2"), ("fd00::2",)),
        ("::", "node", ("10.0.0.2",), ("10.0.0.2",)),
        ("::", "node", (), ("fd00::1",)),
        ("", "node", (), ("10.0.0.1",)),
    ],
)
def test_the_order_is_upstreams(
    node_ip: str,
    name: str,
    looked_up: tuple[str, ...],
    expected: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "_source_address", routes)
    assert host_ips(node_ip, name, looked_up) == expected


def test_without_any_the_machine_answers_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_source_address", no_route)
    assert host_ips("", "node") == ("127.0.0.1",)
    assert host_ips("", "node", ("10.0.0.2",)) == ("10.0.0.2",)


def test_what_is_no_address_is_named() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        host_ips("nonsense")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.0.1.1", "::1", "169.254.1.1", "fe80::1", "224.0.0.1", "0.0.0.0", "::"),
        *("192.0.2.77", "2001:db8::77", "fe80::1%lo", "name"),
    ],
)
def test_what_is_not_the_machines_own(address: str) -> None:
    assert not is_own(address)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1", "can't be loopback address"),
        ("::1", "can't be loopback address"),
        ("224.0.0.1", "can't be a multicast address"),
        ("169.254.1.1", "can't be a link-local unicast address"),
        ("fe80::1", "can't be a link-local unicast address"),
        ("0.0.0.0", "can't be an all zeros address"),
        ("192.0.2.77", '"192.0.2.77" not found in the host\'s network interfaces'),
    ],
)
def test_why_an_address_is_refused_is_said(address: str, words: str) -> None:
    assert (own_problem(address) or "").endswith(words)


def test_an_address_of_an_interface_is_its_own() -> None:
    found = [ip for ip in host_ips() if ip != "127.0.0.1"]
    assert all(is_own(ip) for ip in found)


def answering(*ips: str) -> object:
    def getaddrinfo(*_args: object, **_options: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (ip, 0)) for ip in ips]

    return getaddrinfo


async def test_a_name_means_what_of_it_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answering("127.0.1.1", "10.0.0.2", "10.0.0.9"))
    monkeypatch.setattr(addresses, "is_own", lambda ip: ip == "10.0.0.2")
    assert await look_up("node", "", only_if_needed=False) == ("10.0.0.2",)
    for node_ip, name in (("192.0.2.4", "node"), ("", "10.1.1.1")):
        assert await look_up(name, node_ip, only_if_needed=False) == ()
    monkeypatch.setattr(addresses, "_source_address", routes)
    assert await look_up("node", "", only_if_needed=True) == ()
    monkeypatch.setattr(addresses, "_source_address", no_route)
    assert await look_up("node", "", only_if_needed=True) == ("10.0.0.2",)


async def test_a_name_that_nobody_knows_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: object, **_options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert await look_up("node", "", only_if_needed=False) == ()


async def test_a_resolver_that_hangs_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: answered.wait(60) and [])
    began = trio.current_time()
    try:
        assert await look_up("node", "", only_if_needed=False) == ()
        assert trio.current_time() - began == 2.0
    finally:
        answered.set()
