"""Which sysctls pods may set."""

from __future__ import annotations

import pytest

from kubelet_trio.pods import kernel_version, sysctl_rules

RULES = sysctl_rules(["kernel.msg*", "net/core/somaxconn", "net.ipv6.neigh.*"], (5, 15))


@pytest.mark.parametrize(
    ("name", "network", "ipc", "expected"),
    [
        ("kernel.shm_rmid_forced", True, False, None),
        ("net/ipv4/tcp_syncookies", False, True, None),
        ("kernel.msgmax", False, False, None),
        ("net.core.somaxconn", False, False, None),
        ("net.ipv6.neigh.eth0.base_reachable_time", False, False, None),
        ("kernel.sem", False, False, '"kernel.sem" not allowlisted'),
        ("net.core.rmem_max", False, False, '"net.core.rmem_max" not allowlisted'),
        (
            "net.ipv4.tcp_rmem",
            True,
            False,
            '"net.ipv4.tcp_rmem" not allowed with host Net enabled',
        ),
        ("kernel.msgmax", False, True, '"kernel.msgmax" not allowed with host IPC enabled'),
    ],
)
def test_safe_ones_and_those_the_node_allows_may_be_set(
    name: str, network: bool, ipc: bool, expected: str | None
) -> None:
    assert RULES.problem(name, host_network=network, host_ipc=ipc) == expected


def test_a_kernel_that_does_not_keep_one_apart_does_not_let_it_be_set() -> None:
    old = sysctl_rules(kernel=(4, 14))
    assert old.problem("net.ipv4.tcp_wmem", host_network=False, host_ipc=False) is not None
    assert old.problem("net.ipv4.tcp_fin_timeout", host_network=False, host_ipc=False) is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("vm.swappiness", 'the sysctls "vm.swappiness" are not known to be namespaced'),
        ("kernel.*", 'the sysctls "kernel.*" are not known to be namespaced'),
        ("net.*.x", 'sysctl "net.*.x" must have'),
        ("", 'sysctl "" must have'),
    ],
)
def test_a_node_cannot_allow_what_is_its_own(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match="sysctl") as caught:
        sysctl_rules([pattern])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("release", "expected"), [("5.15.0-91-generic", (5, 15)), ("6.1", (6, 1)), ("odd", (0, 0))]
)
def test_the_kernels_version(release: str, expected: tuple[int, int]) -> None:
    assert kernel_version(release) == expected
