"""A `FakeKube` over HTTP, for agents that are processes of their own.

Plain HTTP/1.1 and no authentication: whoever connects is the user of the client that is served.
"""

from __future__ import annotations

import functools
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio

from kubelet_trio.kube import (
    ROUTES,
    Bookmark,
    KubeError,
    KubeUnavailableError,
    PatchKind,
    Resource,
    from_json,
    to_json,
)
from kubelet_trio.testing import FakeKubeClient

Json = dict[str, Any]
_CHUNK = 1 << 16
_HEADERS = [("content-type", "application/json")]
# Kinds that are posted below an object, and their groups' modules.
_BELOW = {
    "Binding": "core_v1",
    "Eviction": "policy_v1",
    "TokenRequest": "authentication_v1",
}
_NOT_FOUND = KubeError(404, "NotFound", "the server could not find the requested resource")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, its path taken apart."""

    method: str
    route: Resource
    namespace: str
    name: str
    subresource: str
    query: dict[str, str]
    content_type: str
    body: Any

    @property
    def model(self) -> type[Any]:
        posted = self.body.get("kind", "") if self.method == "POST" else ""
        if posted in _BELOW:
            return _model(posted, _BELOW[posted])
        group = self.route.group.partition(".")[0] or "core"
        return _model(self.route.kind, f"{group}_{self.route.version}")

    @property
    def selection(self) -> dict[str, str]:
        return {
            "namespace": self.namespace,
            "field_selector": self.query.get("fieldSelector", ""),
            "label_selector": self.query.get("labelSelector", ""),
        }


_VERSIONS = {route.version_path.encode() for route in ROUTES.values()}


def write_kubeconfig(path: Path, port: int) -> None:
    """Write the kubeconfig of whom `serve_api` serves at a port."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "node", "user": {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "node"}}],
        "current-context": "fake",
    }
    path.write_text(json.dumps(config))


async def serve_api(
    client: FakeKubeClient, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve a client's requests until cancelled; started with the port on 127.0.0.1."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(listener.socket.getsockname()[1])
    await trio.serve_listeners(functools.partial(_serve, client), [listener])


async def _serve(client: FakeKubeClient, stream: trio.abc.Stream) -> None:
    try:
        async with stream:
            await _Connection(client, stream).serve()
    # The agent was killed, or a fault of the fake broke the connection.
    except* (trio.BrokenResourceError, h11.RemoteProtocolError, KubeUnavailableError):
        pass


class _Connection:
    """One connection of an agent: request after request."""

    def __init__(self, client: FakeKubeClient, stream: trio.abc.Stream) -> None:
        self._client, self._stream = client, stream
        self._http = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        while True:
            request = await self._next()
            if not isinstance(request, h11.Request):
                return
            body = b""
            while isinstance(data := await self._next(), h11.Data):
                body += bytes(data.data)
            try:
                if request.target in _VERSIONS:
                    await self._send(200, {"kind": "APIResourceList", "apiVersion": "v1"})
                else:
                    await self._answer(_asked(request, body))
            except KubeError as exc:
                await self._send(exc.code, _status(exc))
            if self._http.our_state is h11.MUST_CLOSE:
                return
            self._http.start_next_cycle()

    async def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self._stream.receive_some(_CHUNK)))
        return event

    async def _answer(self, asked: Asked) -> None:
        if asked.query.get("watch") == "true":
            await self._watch(asked)
            return
        code = 201 if asked.method == "POST" else 200
        await self._send(code, await _done(self._client, asked))

    async def _send(self, code: int, answer: Json) -> None:
        body = json.dumps(answer).encode()
        headers = [*_HEADERS, ("content-length", str(len(body)))]
        await self._write(h11.Response(status_code=code, headers=headers))
        await self._write(h11.Data(data=body))
        await self._write(h11.EndOfMessage())

    async def _watch(self, asked: Asked) -> None:
        async with self._client.watch(
            asked.model,
            **asked.selection,
            resource_version=asked.query.get("resourceVersion", ""),
            timeout=int(asked.query.get("timeoutSeconds", 0)),
            send_initial_events=asked.query.get("sendInitialEvents") == "true",
        ) as events:
            await self._write(h11.Response(status_code=200, headers=_HEADERS))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait_closed, nursery.cancel_scope)
                try:
                    async for event in events:
                        await self._tell(_event(asked.route, event))
                except KubeError as exc:
                    await self._tell({"type": "ERROR", "object": _status(exc)})
                nursery.cancel_scope.cancel()
        await self._write(h11.EndOfMessage())

    async def _wait_closed(self, scope: trio.CancelScope) -> None:
        """Cancel a watch whose client has gone: nothing may ever be sent to it."""
        await self._stream.receive_some(1)
        scope.cancel()

    async def _tell(self, event: Json) -> None:
        await self._write(h11.Data(data=json.dumps(event).encode() + b"\n"))

    async def _write(self, event: h11.Event) -> None:
        if (data := self._http.send(event)) is not None:
            await self._stream.send_all(data)


def _asked(request: h11.Request, body: bytes) -> Asked:
    """Take a request apart. Raises `KubeError` if nothing is served there."""
    url = urlsplit(request.target.decode())
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    if parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 2:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise _NOT_FOUND
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "", "")[:3]
    route = next(
        (r for r in ROUTES.values() if (r.group, r.version, r.plural) == (group, version, plural)),
        None,
    )
    if route is None:
        raise _NOT_FOUND
    content_type = dict(request.headers).get(b"content-type", b"").decode()
    found = json.loads(body) if body else {}
    method, query = request.method.decode(), dict(parse_qsl(url.query))
    return Asked(method, route, namespace, name, subresource, query, content_type, found)


async def _done(client: FakeKubeClient, asked: Asked) -> Json:
    """Return the answer to a request that is not a watch."""
    model, namespace, sub = asked.model, asked.namespace, asked.subresource
    match asked.method:
        case "GET" if asked.name:
            return _object(asked.route, await client.get(model, asked.name, namespace=namespace))
        case "GET":
            return await _listed(client, asked)
        case "POST":
            obj = from_json(asked.body, model)
            done = await client.create(obj, namespace=namespace, name=asked.name, subresource=sub)
        case "PUT":
            obj = from_json(asked.body, model)
            done = await client.update(obj, namespace=namespace, subresource=sub)
        case "PATCH":
            kind = PatchKind(asked.content_type)
            done = await client.patch(
                model, asked.name, asked.body, namespace=namespace, subresource=sub, kind=kind
            )
        case "DELETE" if asked.name:
            wanted = asked.body.get("preconditions") or {}
            await client.delete(
                model, asked.name, namespace=namespace,
                grace_period=asked.body.get("gracePeriodSeconds"),
                uid=wanted.get("uid") or "", resource_version=wanted.get("resourceVersion") or "",
            )  # fmt: skip
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        case "DELETE":
            await client.delete_collection(model, **asked.selection)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        case _:
            raise KubeError(405, "MethodNotAllowed", f"no {asked.method} here")
    plain: Json = to_json(done)
    return plain if model.__name__ in _BELOW else _object(asked.route, done)


async def _listed(client: FakeKubeClient, asked: Asked) -> Json:
    page = await client.list(
        asked.model,
        **asked.selection,
        limit=int(asked.query.get("limit", 0)),
        continue_token=asked.query.get("continue", ""),
        resource_version=asked.query.get("resourceVersion", ""),
    )
    meta = {"resourceVersion": page.resource_version, "continue": page.continue_token}
    items = [to_json(item) for item in page.items]
    route = asked.route
    return {
        "kind": f"{route.kind}List", "apiVersion": route.api_version, "metadata": meta,
        "items": items,
    }  # fmt: skip


def _status(error: KubeError) -> Json:
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": error.code,
        "reason": error.reason, "message": error.message,
    }  # fmt: skip


def _object(route: Resource, obj: Any) -> Json:
    return {**to_json(obj), "kind": route.kind, "apiVersion": route.api_version}


def _event(route: Resource, event: Any) -> Json:
    if not isinstance(event, Bookmark):
        return {"type": event.kind.value, "object": _object(route, event.object)}
    meta: Json = {"resourceVersion": event.resource_version}
    if event.ends_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    shown = {"kind": route.kind, "apiVersion": route.api_version, "metadata": meta}
    return {"type": "BOOKMARK", "object": shown}


@functools.cache
def _model(kind: str, module: str) -> type[Any]:
    found: type[Any] = getattr(importlib.import_module(f"lightkube.models.{module}"), kind)
    return found
