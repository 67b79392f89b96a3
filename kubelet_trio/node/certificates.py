"""The node's own certificates: `certificates` in the supervision tree, on a node of a cluster.

    client    identifies the node to the API server: requested with `--bootstrap-kubeconfig` where
              no valid one exists, renewed with `rotateCertificates`
    serving   of the kubelet API, with `serverTLSBootstrap`

A new certificate restarts nothing: the users of the files read them again. While the node has no
client certificate, its requests wait for one, and static pods run.

Source: pkg/kubelet/certificate/kubelet.go and buildKubeletClientConfig in server.go. Unlike there,
a certificate that expires while the agent runs does not end the process: with a bootstrap
kubeconfig a new one is requested, and without one the attempts go on.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
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
from kubelet_trio.model import Meter, Offload, WallClock, get_logger, is_ip
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
# Types of NodeAddress. A Hostname may be either: upstream sorts it by its form.
_IPS = ("InternalIP", "ExternalIP", "Hostname")
_HOSTS = ("InternalDNS", "ExternalDNS", "Hostname")


def serving_store(cert_dir: Path, offload: Offload) -> CertificateStore:
    """Return the files of the kubelet API's certificate."""
    return CertificateStore(cert_dir.absolute(), "kubelet-server", offload)


def serving_wanted(node: str, addresses: Iterable[NodeAddress]) -> CertificateRequest | None:
    """Return the serving certificate for a node's addresses; None while it has no IP address."""
    given = [(address.type, address.address) for address in addresses if address.address]
    ips = {text for kind, text in given if kind in _IPS and is_ip(text)}
    hosts = {text for kind, text in given if kind in _HOSTS and not is_ip(text)}
    if not ips:
        return None
    plain = sorted(str(ipaddress.ip_address(ip)) for ip in ips)
    return CertificateRequest(
        SERVING_SIGNER, f"system:node:{node}", hosts=tuple(sorted(hosts)), addresses=tuple(plain)
    )


def ttl(held: Certificate | None, now: float) -> float:
    """Return the whole seconds that a certificate has left, as the gauges show it."""
    return math.inf if held is None or held.not_after <= now else math.trunc(held.not_after - now)


def awaited_certificate(access: ClientAccess) -> AwaitedCertificate:
    """Return what the clients of the API server wait for before their first request."""
    awaited = AwaitedCertificate()
    if not access.is_missing:
        awaited.arrived()
    return awaited


class ClientCertificate:
    """The certificate by which the API server knows the node; see the module."""

    def __init__(
        self,
        access: ClientAccess,
        node: str,
        clock: WallClock,
        api: KubeApi,
        awaited: AwaitedCertificate,
        meter: Meter,
        *,
        rotate: bool,
        open_api: OpenApi | None = None,
    ) -> None:
        """Take over the certificate that was found.

        Args:
            access: the way to the API server, and the certificate found.
            node: the node's name.
            clock: wall time.
            api: the API server, as this node: asked once it has a certificate.
            awaited: what the clients of the API server wait for (`awaited_certificate`).
            meter: counts failed renewals.
            rotate: whether to renew it.
            open_api: opens the API server with the bootstrap kubeconfig.
        """
        self._access = access
        self._api = api
        self._open = open_api or open_client
        self._is_initial = access.is_initial
        self._awaited = awaited
        self._rotate = rotate
        self._clock = clock
        outcomes = None
        if rotate:
            meter.count(_CLIENT_ERRORS, by=0)
            outcomes = RenewalHooks(failed=partial(meter.count, _CLIENT_ERRORS))
        wanted: AsyncValue[CertificateRequest | None] = AsyncValue(client_request(node))
        self._rotation = Rotation(
            access.store, wanted, self._asking, clock, outcomes, held=access.held
        )

    def children(self) -> tuple[ChildSpec, ...]:
        """Return the task that gets and renews it; none where there is nothing to do."""
        if not self._rotate and not self._access.is_missing:
            return ()
        restart = Restart.PERMANENT if self._rotate else Restart.TRANSIENT
        return (ChildSpec("client", self.run, restart),)

    def ttls(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield the gauge of the seconds left, where it is renewed."""
        if self._rotate:
            yield _CLIENT_TTL, (), ttl(self._rotation.held, self._clock.time())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Get the first certificate where there is none; then renew it, if asked to."""
        self._awaited.asked()
        task_status.started()
        try:
            if self._access.is_missing and not self._rotation.is_valid():
                await self._rotation.get()
                await self._write_kubeconfig()
            self._awaited.arrived()
        finally:
            # Cancelled: requests that still wait would hold up the agent's end.
            self._awaited.given_up()
        if not self._rotate:
            return
        if self._is_initial:
            await self._rotation.get()
            self._is_initial = False
        await self._rotation.run()

    async def _write_kubeconfig(self) -> None:
        config, store = self._access.config, self._access.store
        try:
            await store.offload(write_kubeconfig, Path(config.origin), config, store.current)
        except OSError as exc:
            # The certificate is on disk: the next start writes the file without a new request.
            log.error("bootstrap.kubeconfig_not_written", error=str(exc))
        else:
            log.info("bootstrap.done", kubeconfig=config.origin)

    @asynccontextmanager
    async def _asking(self, held: Certificate | None) -> AsyncIterator[KubeApi]:
        first = self._access.first
        if first is None or self._rotation.is_valid():
            yield self._api
            return
        config = await self._access.store.offload(load_kubeconfig, first)
        async with self._open(config) as api:
            yield api


@dataclass(frozen=True, slots=True)
class ServingFiles:
    """Where the serving certificate is kept.

    Attributes:
        store: of the certificates that the API server has signed.
        given: `tlsCertFile`, which serves until the first of them has come; None: there is none.
    """

    store: CertificateStore
    given: Path | None = None


class ServingCertificate:
    """The certificate of the kubelet API, for the addresses of the node's object."""

    def __init__(
        self,
        files: ServingFiles,
        node: str,
        clock: WallClock,
        api: KubeApi,
        value: AsyncValue[Node | None],
        meter: Meter,
    ) -> None:
        """Args:
        files: where it is kept.
        node: the node's name.
        clock: wall time.
        api: the API server.
        value: the node's object.
        meter: counts failed renewals, and measures how old certificates became.
        """
        self._files = files
        self._node = node
        self._clock = clock
        self._api = api
        self._value = value
        self._meter = meter
        self._wanted: AsyncValue[CertificateRequest | None] = AsyncValue(None)
        meter.count(_SERVER_ERRORS, by=0)
        outcomes = RenewalHooks(self._measure_age, partial(meter.count, _SERVER_ERRORS))
        self.rotation = Rotation(files.store, self._wanted, self._asking, clock, outcomes)

    def children(self) -> tuple[ChildSpec, ...]:
        """Return the task that gets and renews it."""
        return (ChildSpec("serving", self.run),)

    def ttls(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield the gauge of the seconds left."""
        yield _SERVER_TTL, (), ttl(self.rotation.held, self._clock.time())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a certificate for the addresses that the node has."""
        task_status.started()
        self.rotation.hold(await self._files.store.held(self._files.given))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, name="addresses")
            await self.rotation.run()

    async def _follow(self) -> None:
        async for node in self._value.eventual_values():
            status = node.status if node is not None else None
            wanted = serving_wanted(self._node, (status.addresses if status else None) or ())
            if wanted is not None and wanted != self._wanted.value:
                self._wanted.value = wanted

    def _measure_age(self, before: Certificate | None) -> None:
        if before is not None:
            age = self._clock.time() - before.not_before
            self._meter.observe(_SERVER_AGE, age, buckets=_AGES)

    @asynccontextmanager
    async def _asking(self, _held: Certificate | None) -> AsyncIterator[KubeApi]:
        yield self._api
