"""From the configuration to a place in a cluster: imported only where there is a kubeconfig."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpcore2
from lightkube.models.core_v1 import Taint

from kubelet_trio.agent.certificates import (
    ClientCertificate,
    NodeCertificates,
    ServingCertificate,
    serving_store,
)
from kubelet_trio.agent.cluster import Cluster, ClusterSettings, ReviewApis
from kubelet_trio.agent.offline import make_keeper
from kubelet_trio.config import Settings
from kubelet_trio.containers import NodeSettings
from kubelet_trio.kube import KubeApi, RequestAttempt, client_access, client_store, open_client
from kubelet_trio.model import REQUESTS, Meter, Offload, Purpose, WallClock, thread_offload
from kubelet_trio.node import (
    HeartbeatPeriods,
    NodeCapacity,
    NodeIdentity,
    go_arch,
    resources_of,
    system_info,
)
from kubelet_trio.objects import ChangeDetection

# Kubernetes' version whose behaviour this is, and whose it is: clusters compare the former.
KUBELET_VERSION = "v1.36.2+kubelet-trio"

# Heartbeats are few and small: what else the node has to say must not make them wait.
_NO_LIMIT = -1.0
_HEARTBEAT_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Apis:
    """The ways to one API server, each with its connections and its rate."""

    api: KubeApi
    heartbeat: KubeApi
    host: str
    client: ClientCertificate | None = None
    meter: Meter = field(default_factory=Meter)  # told of every request
    reviews: ReviewApis | None = None  # None: by `api`


@asynccontextmanager
async def open_apis(
    settings: Settings,
    node: str,
    clock: WallClock,
    *,
    offload: Offload = thread_offload.of(Purpose.CERTIFICATES),
    network: httpcore2.AsyncNetworkBackend | None = None,
) -> AsyncIterator[Apis]:
    """Open what `--kubeconfig` or `--bootstrap-kubeconfig` name. Connects to nothing yet.

    `network` stands in for the network.

    Raises OSError, or ValueError naming file and field.
    """
    config, flags = settings.config, settings.flags
    access = await client_access(
        Path(flags.kubeconfig),
        client_store(Path(flags.cert_dir), offload),
        clock,
        first=Path(flags.bootstrap_kubeconfig) if flags.bootstrap_kubeconfig else None,
        rotate=config.rotate_certificates,
    )
    client = ClientCertificate(access, node, clock, rotate=config.rotate_certificates)
    meter = Meter()
    told = partial(tell_exchange, meter)
    opened = partial(
        open_client,
        access.config,
        awaited=client.awaited,
        observe=told,
        offload=offload,
        network=network,
    )
    qps, burst = config.kube_api_qps, config.kube_api_burst
    async with (
        opened(qps=qps, burst=burst) as api,
        opened(qps=_NO_LIMIT, request_timeout=_HEARTBEAT_TIMEOUT) as heartbeat,
        # A stranger who goes away while it is asked about takes a connection along.
        opened(qps=qps, burst=burst) as tokens,
    ):
        reviews = ReviewApis(tokens, tokens.sharing(qps=qps, burst=burst))
        yield Apis(api, heartbeat, api.host, client, meter, reviews)


def tell_exchange(meter: Meter, exchange: RequestAttempt) -> None:
    """Count a request under client-go's names."""
    method, host = exchange.method, exchange.host
    meter.count("rest_client_requests_total", (exchange.code, host, method))
    where = host, method
    meter.observe("rest_client_request_duration_seconds", exchange.seconds, where, REQUESTS)
    waited = "rest_client_rate_limiter_duration_seconds"
    meter.observe(waited, exchange.waited, where, REQUESTS)


def make_cluster(
    settings: Settings, node: NodeSettings, capacity: NodeCapacity, apis: Apis, clock: WallClock
) -> Cluster:
    """Return the node's place in the cluster that the configuration asks for."""
    config = settings.config
    return Cluster(
        apis.api,
        ClusterSettings(
            node_identity(settings, node),
            resources_of(capacity),
            lambda runtime: system_info(KUBELET_VERSION, runtime),
            host_ips=node.host_ips,
            host=apis.host,
            periods=HeartbeatPeriods(
                config.node_status_update_frequency, config.node_status_report_frequency
            ),
            lease_seconds=config.node_lease_duration_seconds,
            change_detection=ChangeDetection(
                config.config_map_and_secret_change_detection_strategy
            ),
            event_qps=config.event_record_qps,
            event_burst=config.event_burst,
        ),
        clock,
        apis.heartbeat,
        make_keeper(settings),
        NodeCertificates(clock, apis.client, _serving_certificate(settings, node, clock)),
        apis.reviews,
    )


def _serving_certificate(
    settings: Settings, node: NodeSettings, clock: WallClock
) -> ServingCertificate | None:
    config = settings.config
    if not config.server_tls_bootstrap or not config.enable_server:
        return None
    store = serving_store(Path(settings.flags.cert_dir), thread_offload.of(Purpose.CERTIFICATES))
    given = Path(config.tls_cert_file) if config.tls_cert_file else None
    return ServingCertificate(store, node.node_name, clock, given)


def node_identity(settings: Settings, node: NodeSettings) -> NodeIdentity:
    """Return what configuration and flags say of the node's object."""
    config, flags = settings.config, settings.flags
    return NodeIdentity(
        node.node_name,
        labels=flags.node_labels,
        taints=tuple(
            Taint(key=t.key, value=t.value or None, effect=t.effect)
            for t in config.register_with_taints
        ),
        unschedulable=not flags.register_schedulable,
        register=config.register_node,
        provider_id=config.provider_id,
        external_cloud=flags.cloud_provider == "external",
        # 0.0.0.0 and :: ask for a family, not for an address.
        node_ips=node.host_ips if flags.node_ip not in ("", "0.0.0.0", "::") else (),
        has_node_ip=bool(flags.node_ip),
        attach_detach=config.enable_controller_attach_detach,
        keep_terminated_volumes=flags.keep_terminated_pod_volumes,
        port=config.port if config.enable_server else 0,
        max_images=config.node_status_max_images,
        local_storage=config.local_storage_capacity_isolation,
        get_on_exists_only=config.feature_gates.get("KubeletRegistrationGetOnExistsOnly", False),
        arch=go_arch(),
    )
