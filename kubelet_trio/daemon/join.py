"""Builds the node of a cluster from the configuration: imported only with a kubeconfig."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpcore2

from kubelet_trio.agent import ApiServer, ClusterSettings, ReviewApis
from kubelet_trio.config import Settings
from kubelet_trio.containers import NodeSettings
from kubelet_trio.daemon.identity import own_node
from kubelet_trio.kube import KubeApi, RequestAttempt, client_access, client_store, open_client
from kubelet_trio.model import (
    REQUESTS,
    SIZES,
    Meter,
    Offload,
    Purpose,
    WallClock,
    get_logger,
    thread_offload,
)
from kubelet_trio.node import (
    ClientCertificate,
    HeartbeatPeriods,
    NodeCapacity,
    ServingFiles,
    awaited_certificate,
    serving_store,
)
from kubelet_trio.objects import ChangeDetection

if TYPE_CHECKING:
    from kubelet_trio.offline import Keeper

log = get_logger()

# As upstream's heartbeatClientConfig (cmd/kubelet/app/server.go): no rate limit, because the
# node's other requests must not delay heartbeats; the timeout is nodeStatusUpdateFrequency's
# default.
_NO_LIMIT = -1.0
_HEARTBEAT_TIMEOUT = 10.0
_OFFLINE = "offline"  # directory of `--offline-pods`, below the root directory


@dataclass(frozen=True, slots=True)
class Apis:
    """The clients of one API server, each with its connections and its rate limit."""

    api: KubeApi
    heartbeat: KubeApi
    host: str
    client: ClientCertificate | None = None
    meter: Meter = field(default_factory=Meter)  # measures every request
    reviews: ReviewApis | None = None  # None: `api` serves


@asynccontextmanager
async def open_apis(
    settings: Settings,
    node: str,
    clock: WallClock,
    *,
    offload: Offload = thread_offload.of(Purpose.CERTIFICATES),
    network: httpcore2.AsyncNetworkBackend | None = None,
) -> AsyncIterator[Apis]:
    """Open the API server of `--kubeconfig` or `--bootstrap-kubeconfig`. Connects to nothing yet.

    `network` replaces the network.

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
    meter, awaited = Meter(), awaited_certificate(access)
    opened = partial(
        open_client,
        access.config,
        awaited=awaited,
        observe=partial(measure_exchange, meter),
        offload=offload,
        network=network,
    )
    qps, burst = config.kube_api_qps, config.kube_api_burst
    async with (
        # Three pools of connections: a slow answer in one delays no request of the others.
        opened(qps=qps, burst=burst) as api,
        opened(qps=_NO_LIMIT, request_timeout=_HEARTBEAT_TIMEOUT) as heartbeat,
        # A client that disconnects during its review ends a connection: not one of the node's.
        opened(qps=qps, burst=burst) as tokens,
    ):
        client = ClientCertificate(
            access, node, clock, api, awaited, meter, rotate=config.rotate_certificates
        )
        reviews = ReviewApis(tokens, tokens.sharing(qps=qps, burst=burst))
        yield Apis(api, heartbeat, api.host, client, meter, reviews)


def measure_exchange(meter: Meter, exchange: RequestAttempt) -> None:
    """Count a request under client-go's names."""
    method, host = exchange.method, exchange.host
    meter.count("rest_client_requests_total", (exchange.code, host, method))
    where = host, method
    meter.observe("rest_client_request_duration_seconds", exchange.seconds, where, REQUESTS)
    waited = "rest_client_rate_limiter_duration_seconds"
    meter.observe(waited, exchange.waited, where, REQUESTS)
    if exchange.is_retry:
        meter.count("rest_client_request_retries_total", (exchange.code, host, method))
    for name, size in (("request", exchange.sent), ("response", exchange.received)):
        if size is not None:
            meter.observe(f"rest_client_{name}_size_bytes", size, where, SIZES)


def make_api_server(
    settings: Settings, node: NodeSettings, capacity: NodeCapacity, apis: Apis
) -> ApiServer:
    """Return the seam to the API server, with the settings of the node's object."""
    config = settings.config
    own = own_node(settings, node, capacity)
    return ApiServer(
        apis.api,
        ClusterSettings(
            own.identity,
            own.resources,
            own.info,
            host_ips=own.host_ips,
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
            trust_bundles=config.feature_gates.get("ClusterTrustBundleProjection", False),
            pod_certificates=config.feature_gates.get("PodCertificateRequest", False),
        ),
        apis.heartbeat,
        make_keeper(settings),
        apis.client,
        _serving_files(settings),
        apis.reviews,
    )


def _serving_files(settings: Settings) -> ServingFiles | None:
    config = settings.config
    if not config.server_tls_bootstrap or not config.enable_server:
        return None
    store = serving_store(Path(settings.flags.cert_dir), thread_offload.of(Purpose.CERTIFICATES))
    given = Path(config.tls_cert_file) if config.tls_cert_file else None
    return ServingFiles(store, given)


def make_keeper(settings: Settings) -> Keeper | None:
    """Return the keeper of `--offline-pods`; without the option, remove what an earlier one kept.

    Blocks. Raises OSError if that cannot be removed: it contains secrets; `StateVersionError` if
    what is kept is of a newer agent.
    """
    path = Path(settings.flags.root_dir) / _OFFLINE
    if settings.config.offline_pods:
        from kubelet_trio.offline import Folder, Keeper

        folder = Folder(path)
        folder.check()
        return Keeper(folder, thread_offload.of(Purpose.OFFLINE))
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        log.info("offline.removed", path=str(path))
    return None
