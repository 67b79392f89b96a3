"""The API server over HTTP: `KubeApi` on httpcore2. Imported only if there is a kubeconfig.

A request waits for the rate limit, has fresh credentials, and a time limit for the whole exchange:
a server that accepts connections and never answers counts as down. The client repeats requests
that the server asks it to repeat (429, `Retry-After`), once after a 401, with credentials read
anew, and reads whose connection broke. Any other failure is the caller's to retry.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import httpcore2
import trio

from kubelet_trio.kube.api import Bookmark, ObjectList, PatchKind, WatchEvent
from kubelet_trio.kube.codec import RawList, decode, decode_items, encode, to_json
from kubelet_trio.kube.connections import Connections
from kubelet_trio.kube.credentials import AwaitedCertificate, Credentials
from kubelet_trio.kube.errors import NotFoundError
from kubelet_trio.kube.kubeconfig import ClientConfig
from kubelet_trio.kube.limits import TokenBucket
from kubelet_trio.kube.request import ApiRequest, Observer, RequestAttempt, Sender
from kubelet_trio.kube.resources import route_of
from kubelet_trio.kube.watch import CurrentEvents, watch_events
from kubelet_trio.model import Offload, Purpose, thread_offload

T = TypeVar("T")

_JSON = "application/json"
_CLOSE = 5.0  # seconds that closing may take

__all__ = ["KubeClient", "RequestAttempt", "open_client"]


@contextlib.asynccontextmanager
async def open_client(
    config: ClientConfig,
    *,
    qps: float = 50.0,
    burst: int = 100,
    request_timeout: float = 30.0,
    http2: bool = True,
    observe: Observer | None = None,
    awaited: AwaitedCertificate | None = None,
    offload: Offload = thread_offload.of(Purpose.CERTIFICATES),
    network: httpcore2.AsyncNetworkBackend | None = None,
) -> AsyncIterator[KubeClient]:
    """Open a client; it connects on demand, and closes its connections at the end.

    Args:
        config: server and credentials.
        qps: requests a second (`kubeAPIQPS`).
        burst: requests at once (`kubeAPIBurst`).
        request_timeout: seconds for one attempt, answer included.
        http2: offer HTTP/2 for requests other than watches.
        observe: called after each attempt.
        awaited: a certificate that requests wait for.
        offload: runs blocking calls.
        network: replaces the network in tests.
    """
    credentials = Credentials(config, offload=offload, awaited=awaited)
    connections = Connections(credentials, http2=http2, offload=offload, network=network)
    try:
        sender = Sender(connections, observe)
        yield KubeClient(sender, TokenBucket(qps, burst), request_timeout)
    finally:
        with trio.move_on_after(_CLOSE, shield=True):
            await connections.close()


class KubeClient:
    """An API server. Made by `open_client`."""

    def __init__(self, sender: Sender, bucket: TokenBucket, request_timeout: float) -> None:
        self._sender = sender
        self._bucket = bucket
        self._timeout = request_timeout

    @property
    def host(self) -> str:
        """Host and port of the server."""
        return self._sender.host

    def sharing(
        self, *, qps: float, burst: int, request_timeout: float | None = None
    ) -> KubeClient:
        """Return a client with the same connections and a rate limit of its own."""
        bucket = TokenBucket(qps, burst)
        return KubeClient(self._sender, bucket, request_timeout or self._timeout)

    async def get(
        self, model: type[T], name: str, *, namespace: str = "", resource_version: str = ""
    ) -> T:
        path = route_of(model).path(namespace, name)
        query = {"resourceVersion": resource_version}
        return decode(await self._send("GET", path, query), model, path)

    async def serves(self, model: type[Any]) -> bool:
        try:
            await self._send("GET", route_of(model).version_path, {})
        except NotFoundError:
            return False
        return True

    async def list(
        self,
        model: type[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
    ) -> ObjectList[T]:
        path = route_of(model).path(namespace)
        query = {
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
            "limit": str(limit) if limit else "",
            "continue": continue_token,
            "resourceVersion": resource_version,
        }
        page = decode(await self._send("GET", path, query), RawList, path)
        items = await decode_items(page.items or (), model, path)
        return ObjectList(items, page.metadata.resource_version, page.metadata.continue_)

    @contextlib.asynccontextmanager
    async def watch(
        self,
        model: type[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        timeout: int = 0,  # noqa: ASYNC109  # the server's
        send_initial_events: bool = False,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T] | Bookmark]]:
        path = route_of(model).path(namespace)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout) if timeout else "",
        }
        if send_initial_events:
            # API servers refuse the first without the second (KEP-3157).
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        request = ApiRequest("GET", path, query)
        # Other than in client-go, watches wait for the rate limit too.
        await self._bucket.take()
        async with self._sender.stream(request, self._timeout) as (response, connection):
            async with aclosing(watch_events(response, model, path)) as events:
                yield CurrentEvents(events, connection)

    async def create(
        self, obj: T, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> T:
        body = to_json(obj)
        namespace = namespace or (body.get("metadata") or {}).get("namespace", "")
        # A new object is posted to its collection, a TokenRequest below its service account.
        path = route_of(type(obj)).path(namespace, name if subresource else "", subresource)
        return await self._write("POST", path, body, type(obj))

    async def update(self, obj: T, *, namespace: str = "", subresource: str = "") -> T:
        body = to_json(obj)
        meta = body.get("metadata") or {}
        path = route_of(type(obj)).path(
            namespace or meta.get("namespace", ""), meta.get("name", ""), subresource
        )
        return await self._write("PUT", path, body, type(obj))

    async def patch(
        self,
        model: type[T],
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        *,
        namespace: str = "",
        subresource: str = "",
        kind: PatchKind = PatchKind.STRATEGIC,
    ) -> T:
        path = route_of(model).path(namespace, name, subresource)
        return await self._write("PATCH", path, body, model, kind.value)

    async def delete(
        self,
        model: type[Any],
        name: str,
        *,
        namespace: str = "",
        grace_period: int | None = None,
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if given := {key: value for key, value in preconditions.items() if value}:
            options["preconditions"] = given
        path = route_of(model).path(namespace, name)
        await self._send("DELETE", path, {}, encode(options), _JSON)

    async def delete_collection(
        self,
        model: type[Any],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
    ) -> None:
        path = route_of(model).path(namespace)
        query = {"fieldSelector": field_selector, "labelSelector": label_selector}
        await self._send("DELETE", path, query)

    async def _write(
        self, method: str, path: str, body: Any, model: type[T], content_type: str = _JSON
    ) -> T:
        return decode(await self._send(method, path, {}, encode(body), content_type), model, path)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes = b"",
        content_type: str = "",
    ) -> bytes:
        request = ApiRequest(method, path, query, body, content_type)
        return await self._sender.send(request, self._bucket, self._timeout)
