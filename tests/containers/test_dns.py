from __future__ import annotations

from dataclasses import replace

import pytest
from lightkube.models.core_v1 import PodDNSConfig, PodDNSConfigOption

from kubelet_trio.containers import pod_dns, resolv_conf_problem
from kubelet_trio.containers.node import ResolvConf, parse_resolv_conf
from tests.containers.make import NODE, pod

HOST = ResolvConf(("192.168.1.1",), ("example.org",), ("timeout:2",))
CLUSTERED = replace(NODE, cluster_dns=("10.96.0.10",), resolv_conf=HOST)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ResolvConf()),
        ("nameserver 10.0.0.1\nnameserver 10.0.0.2 # two", ResolvConf(("10.0.0.1", "10.0.0.2"))),
        ("  # comment\nsearch a.\nsearch b.example. c\n", ResolvConf((), ("b.example", "c"))),
        ("search .", ResolvConf()),
        ("search . foo. .", ResolvConf((), ("foo",))),
        ("search foo\nsearch .", ResolvConf()),
        (
            "options ndots:1 rotate\noptions ndots:5 attempts:2\noptions attempts:3",
            ResolvConf((), (), ("ndots:5", "rotate", "attempts:3")),
        ),
        ("domain foo\nsortlist x\n\n", ResolvConf()),
    ],
)
def test_resolv_conf_is_parsed(text: str, expected: ResolvConf) -> None:
    assert parse_resolv_conf(text) == expected


def test_a_nameserver_line_without_a_server_is_an_error() -> None:
    with pytest.raises(ValueError, match="nameserver list is empty"):
        parse_resolv_conf("nameserver")


@pytest.mark.parametrize("policy", [None, "ClusterFirst", "ClusterFirstWithHostNet"])
def test_cluster_first_uses_the_clusters_servers_and_searches(policy: str | None) -> None:
    dns = pod_dns(pod(dnsPolicy=policy), CLUSTERED)
    assert dns.config.servers == ["10.96.0.10"]
    assert dns.config.searches == [
        "default.svc.cluster.local",
        "svc.cluster.local",
        "cluster.local",
        "example.org",
    ]
    assert dns.config.options == ["ndots:5"]
    assert dns.warnings == ()


def test_cluster_first_on_the_hosts_network_is_default() -> None:
    dns = pod_dns(pod(dnsPolicy="ClusterFirst", hostNetwork=True), CLUSTERED)
    assert dns.config.servers == ["192.168.1.1"]
    kept = pod_dns(pod(dnsPolicy="ClusterFirstWithHostNet", hostNetwork=True), CLUSTERED)
    assert kept.config.servers == ["10.96.0.10"]


def test_default_is_the_hosts_own() -> None:
    dns = pod_dns(pod(dnsPolicy="Default"), CLUSTERED)
    assert (dns.config.servers, dns.config.searches) == (["192.168.1.1"], ["example.org"])
    assert dns.config.options == ["timeout:2"]


def test_none_is_only_what_the_pod_says() -> None:
    extra = PodDNSConfig(
        nameservers=["1.1.1.1"],
        searches=["x"],
        options=[PodDNSConfigOption(name="ndots", value="2"), PodDNSConfigOption(name="rotate")],
    )
    dns = pod_dns(pod(dnsPolicy="None", dnsConfig=extra), CLUSTERED)
    assert (dns.config.servers, dns.config.searches) == (["1.1.1.1"], ["x"])
    assert dns.config.options == ["ndots:2", "rotate"]


def test_dns_config_is_added_without_duplicates_and_overrides_options() -> None:
    extra = PodDNSConfig(
        nameservers=["10.96.0.10", "1.1.1.1"],
        searches=["cluster.local", "x"],
        options=[PodDNSConfigOption(name="ndots", value="2"), PodDNSConfigOption(name="edns0")],
    )
    dns = pod_dns(pod(dnsConfig=extra), CLUSTERED)
    assert dns.config.servers == ["10.96.0.10", "1.1.1.1"]
    assert dns.config.searches[-3:] == ["cluster.local", "example.org", "x"]
    assert dns.config.options == ["ndots:2", "edns0"]


def test_missing_cluster_dns_falls_back_to_the_hosts_with_a_warning() -> None:
    dns = pod_dns(pod(), replace(CLUSTERED, cluster_dns=()))
    assert dns.config.servers == ["192.168.1.1"]
    assert [w.reason for w in dns.warnings] == ["MissingClusterDNS"]
    assert dns.warnings[0].message == (
        'pod: "web_default(u-1)". kubelet does not have ClusterDNS IP configured and cannot '
        'create Pod using "ClusterFirst" policy. Falling back to "Default" policy.'
    )
    assert f'pod: "web_default(u-1)". {dns.warnings[0].node_message}' == dns.warnings[0].message


def test_without_an_api_server_the_fallback_is_no_warning() -> None:
    dns = pod_dns(pod(), replace(CLUSTERED, cluster_dns=(), standalone=True))
    assert dns.config.servers == ["192.168.1.1"]
    assert dns.warnings == ()


def test_without_the_hosts_file_lookups_go_nowhere() -> None:
    node = replace(NODE, resolv_conf=None, host_ips=("10.0.0.1", "fd00::1"))
    dns = pod_dns(pod(dnsPolicy="Default"), node)
    assert (dns.config.servers, dns.config.searches) == (["127.0.0.1", "::1"], ["."])
    alone = pod_dns(pod(dnsPolicy="Default"), replace(node, host_ips=()))
    assert alone.config.servers == ["127.0.0.1"]


def test_a_fourth_nameserver_is_cut_with_a_warning() -> None:
    extra = PodDNSConfig(nameservers=["1.1.1.1", "2.2.2.2", "3.3.3.3"])
    dns = pod_dns(pod(dnsConfig=extra), CLUSTERED)
    assert dns.config.servers == ["10.96.0.10", "1.1.1.1", "2.2.2.2"]
    assert [w.message for w in dns.warnings] == [
        "Nameserver limits were exceeded, some nameservers have been omitted, "
        "the applied nameserver line is: 10.96.0.10 1.1.1.1 2.2.2.2"
    ]


@pytest.mark.parametrize(
    ("searches", "kept"),
    [
        ([f"s{i}" for i in range(32)], 32),
        ([f"s{i}" for i in range(33)], 32),
        (["a" * 253, "b" * 254, "c"], 2),  # one that crashes resolvers
        ([c * 253 for c in "abcdefgh"], 8),  # 2031 characters
        ([c * 253 for c in "abcdefghi"], 8),
    ],
)
def test_search_domains_are_cut_to_what_resolvers_take(searches: list[str], kept: int) -> None:
    dns = pod_dns(pod(dnsPolicy="None", dnsConfig=PodDNSConfig(searches=searches)), NODE)
    assert len(dns.config.searches) == kept
    assert [w.reason for w in dns.warnings] == ["DNSConfigForming"] * (kept < len(searches))


@pytest.mark.parametrize(
    ("searches", "domain", "words"),
    [
        (["x"] * 32, "", None),
        (["x"] * 33, "", "contains search line consisting of more than 32 domains!"),
        (["x"] * 29, "cluster.local", None),
        (["x"] * 30, "cluster.local", "contains search line consisting of more than 29 domains!"),
        (["a" * 253], "", None),
        (["a" * 254], "", "which length is more than allowed 253 chars!"),
        ([c * 253 for c in "abcdefgh"], "", None),
        ([c * 253 for c in "abcdefghi"], "", "which length is more than allowed 2048 chars!"),
    ],
)
def test_a_resolv_conf_beyond_the_limits_is_told(
    searches: list[str], domain: str, words: str | None
) -> None:
    found = resolv_conf_problem(ResolvConf(searches=tuple(searches)), "/etc/resolv.conf", domain)
    if words is None:
        assert found is None
    else:
        assert found is not None
        assert "/etc/resolv.conf" in found
        assert found.endswith(words)
