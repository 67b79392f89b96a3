"""A pod's resolver settings: the four policies, `dnsConfig`, and the resolvers' limits.

Pure, and lenient as the Go kubelet: what exceeds a limit is cut and comes back as a
warning for an event, never an error. Settings of the host come in as a `ResolvConf`;
`None` in its place means that the host's are not to be used at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightkube.models.core_v1 import Pod, PodDNSConfig, PodDNSConfigOption

from kubelet_trio.cri import v1
from kubelet_trio.model import pod_key, pod_uid
from kubelet_trio.model import spec as pod_spec

if TYPE_CHECKING:
    from kubelet_trio.containers.node import NodeSettings

MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARS = 2048
MAX_SEARCH_LENGTH = 253  # of one search domain: glibc aborts on longer ones
CLUSTER_OPTIONS = ("ndots:5",)
_CLUSTER_SEARCHES = 3  # that the cluster's domain adds

_NO_CLUSTER_DNS = (
    "kubelet does not have ClusterDNS IP configured and cannot create Pod using "
    '"ClusterFirst" policy. Falling back to "Default" policy.'
)


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """A resolv.conf, parsed."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DnsWarning:
    """A Warning event to be recorded on the pod."""

    reason: str  # DNSConfigForming or MissingClusterDNS
    message: str
    node_message: str = ""  # of the same event on the node; empty: there is none


@dataclass(frozen=True, slots=True)
class PodDns:
    """What a pod resolves names with."""

    config: v1.DnsConfig
    warnings: tuple[DnsWarning, ...] = ()


def parse_resolv_conf(text: str) -> ResolvConf:
    """Parse a resolv.conf: nameservers add up, of search and options the last line wins.

    A search domain loses its trailing dot, so that both spellings count as one; the root
    (`.`) stays. Raises ValueError for a nameserver line without a server.
    """
    nameservers: list[str] = []
    searches: Sequence[str] = ()
    options: Sequence[str] = ()
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        keyword, values = words[0], words[1:]
        if keyword == "nameserver":
            if not values:
                raise ValueError("nameserver list is empty")
            nameservers.append(values[0])
        elif keyword == "search":
            searches = [s if s == "." else s.removesuffix(".") for s in values]
        elif keyword == "options":
            options = values
    return ResolvConf(tuple(nameservers), tuple(searches), tuple(options))


def resolv_conf_problem(conf: ResolvConf, path: str, cluster_domain: str) -> str | None:
    """Return what of the host's search line is cut for pods, in upstream's words, or None.

    The message of a `CheckLimitsForResolvConf` event.
    """
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
    if policy == "Default" or (policy == "ClusterFirst" and spec.hostNetwork):
        return _host(node)
    if not node.cluster_dns:
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
    # Without the host's file, lookups are switched off by pointing them at the pod itself.
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
    """Return the options with the pod's overriding by name, each where it first stood."""
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
