"""The kubelet API's place in the tree: `server`, with its HTTPS and its read-only port.

An HTTPS port that could let nobody in is not opened: reviews of tokens and accesses need an
API server, and without one only `AlwaysAllow` lets anybody pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from kubelet_trio.model import Offload
from kubelet_trio.server import SERVING, ApiOptions, Port, serve_http
from kubelet_trio.supervision import ChildSpec

if TYPE_CHECKING:
    from kubelet_trio.agent.cluster import Cluster, ReviewApis
    from kubelet_trio.agent.core import Agent
    from kubelet_trio.server import Authorizer, Guard, Router, ServerTls, TlsSettings

_SERVING_CURRENT = "kubelet-server-current.pem"  # of `certificates.serving_store`


@dataclass(frozen=True, slots=True)
class NodeApiSettings:
    """What the configuration says of the kubelet API. Ports of 0 are not opened."""

    address: str
    port: int = 10250
    read_only_port: int = 0
    cert_dir: Path = Path("/var/lib/kubelet/pki")  # where a certificate is made if none is named
    cert_file: str = ""
    key_file: str = ""
    tls_bootstrap: bool = False  # serverTLSBootstrap: the API server has one signed
    client_ca_file: str = ""
    min_version: str = ""
    cipher_suites: tuple[str, ...] = ()
    anonymous: bool = False
    webhook_authentication: bool = True
    always_allow: bool = False  # authorization.mode; False: Webhook
    token_ttl: float = 120.0
    authorized_ttl: float = 300.0
    unauthorized_ttl: float = 30.0
    options: ApiOptions = field(default_factory=ApiOptions)
    configz: bytes = b"{}"
    flags: Mapping[str, str] = field(default_factory=dict)  # of the command line, for /flagz

    def is_reachable(self, reviews: ReviewApis | None) -> bool:
        """Whether anybody could be let in on the HTTPS port."""
        reviews_tokens = self.webhook_authentication and reviews is not None
        may_be_known = self.anonymous or bool(self.client_ca_file) or reviews_tokens
        return bool(self.port) and may_be_known and (self.always_allow or reviews is not None)


def node_api_children(
    agent: Agent, settings: NodeApiSettings | None, cluster: Cluster | None, offload: Offload
) -> tuple[ChildSpec, ...]:
    """Return the children of `server`; none where nothing is to be served."""
    if settings is None:
        return ()
    reviews = cluster.reviews if cluster is not None else None
    server = _NodeApi(agent, settings, reviews, offload)
    children = []
    if settings.is_reachable(reviews):
        port = agent.ports.tcp("https", "port", settings.address, settings.port)
        serve = partial(server.serve_https, port)
        children.append(ChildSpec("https", serve, policy=SERVING, note=port.problem))
    if settings.read_only_port:
        number = settings.read_only_port
        port = agent.ports.tcp("read-only", "readOnlyPort", settings.address, number)
        serve = partial(server.serve_read_only, port)
        children.append(ChildSpec("read-only", serve, policy=SERVING, note=port.problem))
    return tuple(children)


@dataclass(frozen=True, slots=True)
class _NodeApi:
    agent: Agent
    settings: NodeApiSettings
    reviews: ReviewApis | None
    offload: Offload

    async def serve_https(
        self, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve to whoever may, once the port and a certificate can be had."""
        from kubelet_trio.server import TlsError, measured

        tls: list[ServerTls] = []

        async def load_tls() -> None:
            tls[:] = [await self._load_tls()]

        listeners = await port.listen(task_status.started, load_tls, (TlsError,))
        guard = self._guard()
        await serve_http(
            guard.handler,
            listeners,
            secure=tls[0].secure,
            gate=guard.admit,
            observe=measured(self.agent.meter, "readwrite"),
        )

    async def serve_read_only(
        self, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        from kubelet_trio.server import measured

        listeners = await port.listen(task_status.started)
        router = self._router(read_only=True)
        observe = measured(self.agent.meter, "readonly")
        await serve_http(router, listeners, observe=observe)

    async def _load_tls(self) -> ServerTls:
        """Return what shakes hands. Raises TlsError or OSError: no certificate can be had."""
        from kubelet_trio.server import ServerTls

        tls = ServerTls(await self._tls_settings(), self.offload)
        await tls.load()
        return tls

    def _guard(self) -> Guard:
        from kubelet_trio.server import Guard, NodeAuthenticator, TokenReviews

        settings, reviews = self.settings, self.reviews
        tokens = None
        if settings.webhook_authentication and reviews is not None:
            tokens = TokenReviews(reviews.tokens, settings.token_ttl)
        return Guard(
            self._router(),
            NodeAuthenticator(self.agent.clock, tokens, settings.anonymous),
            self._authorizer(),
            self.agent.node().node_name,
        )

    def _authorizer(self) -> Authorizer:
        from kubelet_trio.server import AccessReviews, allow_all

        if self.settings.always_allow:
            return allow_all
        settings, reviews = self.settings, self.reviews
        assert reviews is not None  # else the port is not opened: see `is_reachable`
        return AccessReviews(reviews.accesses, settings.authorized_ttl, settings.unauthorized_ttl)

    def _router(self, *, read_only: bool = False) -> Router:
        from kubelet_trio.agent.node_page import node_page
        from kubelet_trio.agent.pages import stats_pages
        from kubelet_trio.server import SYSTEM_LOGS, ApiParts, kubelet_router

        agent = self.agent
        parts = ApiParts(
            agent,
            agent.clock,
            agent.check_functions(),
            self.settings.options,
            self.settings.configz,
            flags=self.settings.flags,
            log_dirs=(SYSTEM_LOGS, agent.node().pod_logs_dir),
            plugged=stats_pages(agent.stats, agent.metrics),
            meter=agent.meter,
        )
        router = kubelet_router(parts, read_only=read_only)
        if not read_only and self.settings.options.enable_debugging_handlers:
            # It shows logs, so it goes with their handler.
            router.add("GET", "/ui/{path...}", node_page(agent))
        return router

    async def _tls_settings(self) -> TlsSettings:
        from kubelet_trio.server import TlsSettings, ensure_self_signed

        settings = self.settings
        issued = None
        if settings.tls_bootstrap and self.reviews is not None:
            issued = settings.cert_dir.absolute() / _SERVING_CURRENT
        if settings.cert_file:
            cert, key = Path(settings.cert_file), Path(settings.key_file)
        elif issued is not None:
            cert = key = issued
        else:
            node = self.agent.node()
            cert, key = await self.offload(
                ensure_self_signed, settings.cert_dir, node.hostname, node.host_ips
            )
        client_ca = Path(settings.client_ca_file) if settings.client_ca_file else None
        return TlsSettings(
            cert, key, client_ca, settings.min_version, settings.cipher_suites, issued
        )
