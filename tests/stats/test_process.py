from __future__ import annotations

from kubelet_trio.stats.process import octets, process_samples

_NETSTAT = b"""TcpExt: SyncookiesSent SyncookiesRecv
TcpExt: 1 2
IpExt: InNoRoutes InTruncatedPkts InOctets OutOctets InMcastOctets
IpExt: 0 0 1234 567 0
"""


def test_the_octets_of_ip_are_found_by_their_names() -> None:
    assert octets(_NETSTAT) == (1234, 567)


def test_a_kernel_without_them_shows_none() -> None:
    assert octets(b"TcpExt: A\nTcpExt: 1\n") == (0, 0)
    assert octets(b"IpExt: InOctets OutOctets\n") == (0, 0)


def test_every_figure_of_the_process_is_there() -> None:
    shown = {name for name, _, _ in process_samples()}
    assert {
        "process_network_receive_bytes_total",
        "process_network_transmit_bytes_total",
        "process_virtual_memory_max_bytes",
    } <= shown
