from __future__ import annotations

import pytest

from kubelet_trio.containers import SandboxConfigError
from kubelet_trio.containers.hosts import PodHostname, kernel_hostname, pod_hostname
from tests.containers.make import pod

DOMAIN = "cluster.local"


def test_the_pods_name_stands_in_for_a_hostname() -> None:
    assert pod_hostname(pod(name="web-node"), DOMAIN) == PodHostname("web-node")


def test_hostname_and_subdomain_make_a_domain() -> None:
    name = pod_hostname(pod(hostname="h", subdomain="sub"), DOMAIN)
    assert name == PodHostname("h", "sub.default.svc.cluster.local")


@pytest.mark.parametrize(
    ("pod_name", "expected"),
    [
        ("a" * 63, "a" * 63),
        ("a" * 64, "a" * 63),
        ("a" * 62 + "-b", "a" * 62),
        ("a" * 60 + "..-b", "a" * 60),
        ("web.example", "web.example"),
    ],
)
def test_a_long_name_is_cut_to_63_without_a_dangling_separator(
    pod_name: str, expected: str
) -> None:
    assert pod_hostname(pod(name=pod_name), DOMAIN).hostname == expected


def test_a_name_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(SandboxConfigError, match="was invalid"):
        pod_hostname(pod(name="-" * 64), DOMAIN)


@pytest.mark.parametrize(("hostname", "subdomain"), [("a.b", None), ("A", None), (None, "-a")])
def test_names_that_are_no_dns_labels_are_refused(
    hostname: str | None, subdomain: str | None
) -> None:
    with pytest.raises(SandboxConfigError, match="is not a valid DNS label"):
        pod_hostname(pod(hostname=hostname, subdomain=subdomain), DOMAIN)


def test_an_override_wins_and_drops_the_domain() -> None:
    name = pod_hostname(pod(hostname="h", subdomain="s", hostnameOverride="db.example"), DOMAIN)
    assert name == PodHostname("db.example")
    with pytest.raises(SandboxConfigError, match="not a valid DNS subdomain"):
        pod_hostname(pod(hostnameOverride="a_b"), DOMAIN)


def test_the_full_name_is_the_kernels_only_if_asked_for() -> None:
    name = PodHostname("h", "sub.default.svc.cluster.local")
    assert kernel_hostname(name, None) == "h"
    assert kernel_hostname(name, False) == "h"
    assert kernel_hostname(name, True) == "h.sub.default.svc.cluster.local"
    assert kernel_hostname(PodHostname("h"), True) == "h"


def test_a_full_name_beyond_64_characters_is_refused() -> None:
    assert len(kernel_hostname(PodHostname("h" * 32, "d" * 31), True)) == 64
    with pytest.raises(SandboxConfigError, match="64 characters is the max, 65 characters"):
        kernel_hostname(PodHostname("h" * 32, "d" * 32), True)
