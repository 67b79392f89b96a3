"""The kubelet API in the supervision tree: `server`, with its HTTPS and its read-only port.

An HTTPS port that could let no client in is not opened (`NodeApiSettings.is_reachable`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from kubelet_trio.agent.core import Agent
from kubelet_trio.agent.settings import NodeApiSettings
from kubelet_trio.model import Offload, Purpose
from kubelet_trio.server import SERVING, Port, serve_http
from kubelet_trio.supervision import ChildSpec

if TYPE_CHECKING:
    from kubelet_trio.agent.cluster import ReviewApis
    from kubelet_trio.server import Authorizer, Guard, Router, ServerTls, TlsSettings

_SERVING_CURRENT = "kubelet-server-current.pem"  # of `node.serving_store`


def node_api_children(agent: Agent) -> tuple[ChildSpec, ...]:
    """Return the children of `server`; empty if there is nothing to serve."""
    settings, cluster = agent.seams.node_api, agent.parts.setup.cluster
    if settings is None:
        return ()
    reviews = cluster.reviews if cluster is not None else None
    server = NodeApi(agent, settings, reviews, agent.seams.offload_for(Purpose.CERTIFICATES))
    children = []
    if settings.is_reachable(has_reviews=reviews is not None):
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
class NodeApi:
    """Serves the kubelet API of one agent.

    Attributes:
        agent: the agent.
        settings: of its kubelet API.
        reviews: the clients for reviews of tokens and accesses; None: there is no API server.
        offload: the threads for files of certificates.
    """

    agent: Agent
    settings: NodeApiSettings
    reviews: ReviewApis | None
    offload: Offload

    async def serve_https(
        self, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve authorized clients, once the port and a certificate are available."""
        from kubelet_trio.server import TlsError, measured, traced

        # `listen` calls `load_tls` until it succeeds; the list takes the result.
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
            within=traced,
        )

    async def serve_read_only(
        self, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the routes that need no authorization."""
        from kubelet_trio.server import measured

        listeners = await port.listen(task_status.started)
        router = self._router(read_only=True)
        observe = measured(self.agent.meter, "readonly")
        await serve_http(router, listeners, observe=observe)

    async def _load_tls(self) -> ServerTls:
        """Return the server's side of TLS. Raises TlsError or OSError without a certificate."""
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
        from kubelet_trio.agent.pages import node_page, stats_pages, why_page
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
        if not read_only:
            # Not without authentication: outputs of probes are in it.
            router.add("GET", *why_page(agent))
        if not read_only and self.settings.options.enable_debugging_handlers:
            # The page shows logs, so it goes with the handlers of logs.
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
            # client-go's layout: one file has certificate and key (certificate_store.go).
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
