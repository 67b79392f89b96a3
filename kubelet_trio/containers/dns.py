"""A pod's resolver settings: `dnsPolicy`, `dnsConfig`, and the limits of resolvers. Pure.

As in the Go kubelet, a value beyond a limit is cut and reported by a warning event; it is no
error. The host's settings come in as `NodeSettings.resolv_conf`; None means not to use them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod, PodDNSConfig, PodDNSConfigOption

from kubelet_trio.containers.node import NodeSettings, ResolvConf
from kubelet_trio.cri import v1
from kubelet_trio.model import pod_key, pod_uid
from kubelet_trio.model import spec as pod_spec

# Source: MaxDNSNameservers, MaxDNSSearchPaths and MaxDNSSearchListChars of
# pkg/apis/core/validation. Three nameservers are glibc's limit too, resolv.conf(5).
MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARS = 2048
MAX_SEARCH_LENGTH = 253  # characters of one domain; glibc 2.28 aborts beyond 255 (upstream dns.go)
CLUSTER_OPTIONS = ("ndots:5",)
_CLUSTER_SEARCHES = 3  # search domains that the cluster domain adds

_NO_CLUSTER_DNS = (
    "kubelet does not have ClusterDNS IP configured and cannot create Pod using "
    '"ClusterFirst" policy. Falling back to "Default" policy.'
)


@dataclass(frozen=True, slots=True)
class DnsWarning:
    """A Warning event to be recorded on the pod."""

    reason: str  # DNSConfigForming or MissingClusterDNS
    message: str
    node_message: str = ""  # message of the same event on the node; empty: no such event


@dataclass(frozen=True, slots=True)
class PodDns:
    """A pod's resolver settings, and what was cut from them."""

    config: v1.DnsConfig
    warnings: tuple[DnsWarning, ...] = ()


def resolv_conf_problem(conf: ResolvConf, path: str, cluster_domain: str) -> str | None:
    """Return the message of a `CheckLimitsForResolvConf` event; None if nothing is cut for pods."""
    limit = MAX_SEARCHES - (_CLUSTER_SEARCHES if cluster_domain else 0)
    if len(conf.searches) > limit:
        what = f"search line consisting of more than {limit} domains!"
        return f"Resolv.conf file '{path}' contains {what}"
    if any(len(search) > MAX_SEARCH_LENGTH for search in conf.searches):
        what = f"a search path which length is more than allowed {MAX_SEARCH_LENGTH} chars!"
        return f'Resolv.conf file "{path}" contains {what}'
    if len(" ".join(conf.searches)) > MAX_SEARCH_CHARS:
        what = f"search line which length is more than allowed {MAX_SEARCH_CHARS} chars!"
        return f"Resolv.conf file '{path}' contains {what}"
    return None


def pod_dns(pod: Pod, node: NodeSettings) -> PodDns:
    """Return a pod's resolver settings under its `dnsPolicy` and `dnsConfig`."""
    warnings: list[DnsWarning] = []
    base = _base(pod, node, warnings)
    extra = pod_spec(pod).dnsConfig
    if extra is not None:
        base = _merged(base, extra)
    config = v1.DnsConfig(
        servers=_fit_nameservers(base.nameservers, warnings),
        searches=_fit_searches(base.searches, warnings),
        options=list(base.options),
    )
    return PodDns(config, tuple(warnings))


def _base(pod: Pod, node: NodeSettings, warnings: list[DnsWarning]) -> ResolvConf:
    spec = pod_spec(pod)
    policy = spec.dnsPolicy or "ClusterFirst"
    if policy == "None":
        return ResolvConf()
    # On the host's network ClusterFirst means Default; ClusterFirstWithHostNet exists for that.
    if policy == "Default" or (policy == "ClusterFirst" and spec.hostNetwork):
        return _host(node)
    if not node.cluster_dns:
        # ClusterFirst is the default, and without a cluster nobody can set it up: the agent has a
        # note instead of a Warning for each pod.
        if not node.standalone:
            warnings.append(_missing_cluster_dns(pod))
        return _host(node)
    host = node.resolv_conf or ResolvConf()
    return ResolvConf(
        node.cluster_dns,
        _cluster_searches(pod_key(pod).namespace, node.cluster_domain, host.searches),
        CLUSTER_OPTIONS,
    )


def _host(node: NodeSettings) -> ResolvConf:
    if node.resolv_conf is not None:
        return node.resolv_conf
    # `resolvConf: ""`: as the Go kubelet, disable lookups by pointing them at the pod itself.
    local = tuple("::1" if ":" in ip else "127.0.0.1" for ip in node.host_ips)
    return ResolvConf(local or ("127.0.0.1",), (".",))


def _cluster_searches(
    namespace: str, domain: str, host_searches: tuple[str, ...]
) -> tuple[str, ...]:
    if not domain:
        return host_searches
    return _unique((f"{namespace}.svc.{domain}", f"svc.{domain}", domain, *host_searches))


def _merged(base: ResolvConf, extra: PodDNSConfig) -> ResolvConf:
    return ResolvConf(
        _unique((*base.nameservers, *(extra.nameservers or ()))),
        _unique((*base.searches, *(extra.searches or ()))),
        _merged_options(base.options, extra.options or ()),
    )


def _merged_options(
    existing: Iterable[str], extra: Iterable[PodDNSConfigOption]
) -> tuple[str, ...]:
    """Return the options; the pod's replace others of the same name, in the same position."""
    merged = dict(option.partition(":")[::2] for option in existing)
    merged.update((option.name or "", option.value or "") for option in extra)
    return tuple(f"{name}:{value}" if value else name for name, value in merged.items())


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _fit_nameservers(servers: tuple[str, ...], warnings: list[DnsWarning]) -> list[str]:
    kept = list(servers[:MAX_NAMESERVERS])
    if len(servers) > MAX_NAMESERVERS:
        message = (
            "Nameserver limits were exceeded, some nameservers have been omitted, "
            f"the applied nameserver line is: {' '.join(kept)}"
        )
        warnings.append(DnsWarning("DNSConfigForming", message))
    return kept


def _fit_searches(searches: tuple[str, ...], warnings: list[DnsWarning]) -> list[str]:
    # Upstream drops a domain that is too long, and then domains from the end of a long line.
    kept = [s for s in searches[:MAX_SEARCHES] if len(s) <= MAX_SEARCH_LENGTH]
    while len(" ".join(kept)) > MAX_SEARCH_CHARS:
        kept.pop()
    if len(kept) < len(searches):
        message = (
            "Search Line limits were exceeded, some search paths have been omitted, "
            f"the applied search line is: {' '.join(kept)}"
        )
        warnings.append(DnsWarning("DNSConfigForming", message))
    return kept


def _missing_cluster_dns(pod: Pod) -> DnsWarning:
    key = pod_key(pod)
    name = f"{key.name}_{key.namespace}({pod_uid(pod)})"
    return DnsWarning("MissingClusterDNS", f'pod: "{name}". {_NO_CLUSTER_DNS}', _NO_CLUSTER_DNS)
