"""The node's own certificates at work: `certificates` in the tree, on a node of a cluster.

    client    who the node is at the API server: got with `--bootstrap-kubeconfig` where it has
              none that holds, renewed with `rotateCertificates`
    serving   of the kubelet API, with `serverTLSBootstrap`

Nothing is restarted for a new one: who uses the files reads them again. While the node has no
client certificate at all its requests wait for it, and static pods run.

Source: pkg/kubelet/certificate/kubelet.go and buildKubeletClientConfig in server.go.
Other than there, a certificate that has ended while the agent runs does not end the process: with
a bootstrap kubeconfig it is got anew, and without one the attempts go on.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from lightkube.models.core_v1 import Node, NodeAddress
from trio_util import AsyncValue

from kubelet_trio.kube import (
    SERVING_SIGNER,
    AwaitedCertificate,
    Certificate,
    CertificateRequest,
    CertificateStore,
    ClientAccess,
    ClientConfig,
    KubeApi,
    RenewalHooks,
    Rotation,
    client_request,
    load_kubeconfig,
    open_client,
    write_kubeconfig,
)
from kubelet_trio.model import Meter, Offload, WallClock, get_logger
from kubelet_trio.supervision import ChildSpec, Restart

log = get_logger()

OpenApi = Callable[[ClientConfig], AbstractAsyncContextManager[KubeApi]]

_CLIENT_TTL = "kubelet_certificate_manager_client_ttl_seconds"
_CLIENT_ERRORS = "kubelet_certificate_manager_client_expiration_renew_errors"
_SERVER_TTL = "kubelet_certificate_manager_server_ttl_seconds"
_SERVER_ERRORS = "kubelet_server_expiration_renew_errors"
_SERVER_AGE = "kubelet_certificate_manager_server_rotation_seconds"
_HOUR, _DAY = 3600.0, 86400.0
_AGES: tuple[float, ...] = (
    60.0,
    _HOUR,
    4 * _HOUR,
    *(_DAY * n for n in (1, 7, 30, 90, 180, 360, 1440)),
)
_IPS = ("InternalIP", "ExternalIP", "Hostname")
_HOSTS = ("InternalDNS", "ExternalDNS", "Hostname")


def serving_store(cert_dir: Path, offload: Offload) -> CertificateStore:
    """Return the files of the kubelet API's certificate."""
    return CertificateStore(cert_dir.absolute(), "kubelet-server", offload)


def serving_wanted(node: str, addresses: Iterable[NodeAddress]) -> CertificateRequest | None:
    """Return the serving certificate for a node's addresses; None while it has no IP address."""
    told = [(address.type, address.address) for address in addresses if address.address]
    ips = {text for kind, text in told if kind in _IPS and _is_ip(text)}
    hosts = {text for kind, text in told if kind in _HOSTS and not _is_ip(text)}
    if not ips:
        return None
    plain = sorted(str(ipaddress.ip_address(ip)) for ip in ips)
    return CertificateRequest(
        SERVING_SIGNER, f"system:node:{node}", hosts=tuple(sorted(hosts)), addresses=tuple(plain)
    )


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def ttl(held: Certificate | None, now: float) -> float:
    """Return the whole seconds that a certificate has left, as the gauges show it."""
    return math.inf if held is None or held.not_after <= now else math.trunc(held.not_after - now)


class ClientCertificate:
    """See the module."""

    def __init__(
        self,
        access: ClientAccess,
        node: str,
        clock: WallClock,
        *,
        rotate: bool,
        open_api: OpenApi | None = None,
    ) -> None:
        """Take over what was found; `open_api` opens the API server as somebody else."""
        self._access = access
        self._clock = clock
        self._open = open_api or open_client
        self._is_initial = access.is_initial
        self.rotate = rotate
        self.awaited = AwaitedCertificate()
        if not access.is_missing:
            self.awaited.arrived()
        self._api: KubeApi | None = None
        wanted: AsyncValue[CertificateRequest | None] = AsyncValue(client_request(node))
        self.rotation = Rotation(access.store, wanted, self._asking, clock)
        self.rotation.held = access.held

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do."""
        return self.rotate or self._access.is_missing

    def child(self, api: KubeApi, meter: Meter) -> ChildSpec:
        """Return the task, which asks `api` once the node is somebody there."""
        self._api = api
        if self.rotate:
            meter.count(_CLIENT_ERRORS, by=0)
            self.rotation.outcomes = RenewalHooks(failed=partial(meter.count, _CLIENT_ERRORS))
        restart = Restart.PERMANENT if self.rotate else Restart.TRANSIENT
        return ChildSpec("client", self.run, restart)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Get the first one, where there is none; then renew it, if that is wanted."""
        self.awaited.asked()
        task_status.started()
        try:
            if self._access.is_missing and not self.rotation.is_valid():
                await self.rotation.get()
                await self._write_kubeconfig()
            self.awaited.arrived()
        finally:
            # Nobody is to wait for what nobody gets, while the agent ends.
            self.awaited.given_up()
        if not self.rotate:
            return
        if self._is_initial:
            await self.rotation.get()
            self._is_initial = False
        await self.rotation.run()

    async def _write_kubeconfig(self) -> None:
        config, store = self._access.config, self._access.store
        try:
            await store.offload(write_kubeconfig, Path(config.origin), config, store.current)
        except OSError as exc:
            # The certificate is there: the next start tries again and asks nobody.
            log.error("bootstrap.kubeconfig_not_written", error=str(exc))
        else:
            log.info("bootstrap.done", kubeconfig=config.origin)

    @asynccontextmanager
    async def _asking(self, held: Certificate | None) -> AsyncIterator[KubeApi]:
        first = self._access.first
        if first is None or self.rotation.is_valid():
            assert self._api is not None
            yield self._api
            return
        config = await self._access.store.offload(load_kubeconfig, first)
        async with self._open(config) as api:
            yield api


class ServingCertificate:
    """See the module. `tlsCertFile`, if there is one, stands in until the first has come."""

    def __init__(
        self, store: CertificateStore, node: str, clock: WallClock, given: Path | None = None
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._given = given
        self._wanted: AsyncValue[CertificateRequest | None] = AsyncValue(None)
        self._value: AsyncValue[Node | None] = AsyncValue(None)
        self._api: KubeApi | None = None
        self.rotation = Rotation(store, self._wanted, self._asking, clock)

    def child(self, api: KubeApi, value: AsyncValue[Node | None], meter: Meter) -> ChildSpec:
        """Return the task, which follows the addresses of the node's object."""
        self._api, self._value = api, value

        def renewed(before: Certificate | None) -> None:
            if before is not None:
                age = self._clock.time() - before.not_before
                meter.observe(_SERVER_AGE, age, buckets=_AGES)

        meter.count(_SERVER_ERRORS, by=0)
        self.rotation.outcomes = RenewalHooks(renewed, partial(meter.count, _SERVER_ERRORS))
        return ChildSpec("serving", self.run)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a certificate for the addresses that the node has."""
        task_status.started()
        self.rotation.held = await self._store.held(self._given)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, name="addresses")
            await self.rotation.run()

    async def _follow(self) -> None:
        async for node in self._value.eventual_values():
            status = node.status if node is not None else None
            wanted = serving_wanted(self._node, (status.addresses if status else None) or ())
            if wanted is not None and wanted != self._wanted.value:
                self._wanted.value = wanted

    @asynccontextmanager
    async def _asking(self, _held: Certificate | None) -> AsyncIterator[KubeApi]:
        assert self._api is not None
        yield self._api


class NodeCertificates:
    """What a node of a cluster gets and renews."""

    def __init__(
        self,
        clock: WallClock,
        client: ClientCertificate | None = None,
        serving: ServingCertificate | None = None,
    ) -> None:
        self._clock = clock
        self._client = client if client is not None and client.is_busy else None
        self._serving = serving

    def children(
        self, api: KubeApi, node: AsyncValue[Node | None], meter: Meter
    ) -> tuple[ChildSpec, ...]:
        """Return the tasks; `node` is the node's object."""
        client, serving = self._client, self._serving
        return (
            *((client.child(api, meter),) if client is not None else ()),
            *((serving.child(api, node, meter),) if serving is not None else ()),
        )

    def ttls(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield how long each has left, as gauges."""
        now = self._clock.time()
        if self._client is not None and self._client.rotate:
            yield _CLIENT_TTL, (), ttl(self._client.rotation.held, now)
        if self._serving is not None:
            yield _SERVER_TTL, (), ttl(self._serving.rotation.held, now)
