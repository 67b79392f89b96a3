"""A client of a fake API server: `KubeApi` for one user."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio

from kubelet_trio.kube import (
    Bookmark,
    KubeError,
    KubeUnavailableError,
    ObjectList,
    PatchKind,
    Resource,
    WatchEvent,
    from_json,
    route_of,
    to_json,
)
from kubelet_trio.testing.kube.desk import Desk
from kubelet_trio.testing.kube.faults import KubeRequest
from kubelet_trio.testing.kube.restriction import Anyone
from kubelet_trio.testing.kube.server import DeleteOptions, FakeServer
from kubelet_trio.testing.kube.watch import FakeWatch

T = TypeVar("T")


class FakeKubeClient:
    """Sends one user's requests to the server. See `KubeApi` for the methods."""

    def __init__(self, server: FakeServer, desk: Desk, user: Anyone | None = None) -> None:
        self.server = server
        self.desk = desk
        self.user = user or Anyone()
        # Seconds: defaultBookmarkFrequency of the real server's watch cache (cacher.go).
        self.bookmark_period: float = 60.0
        self.streaming_lists = True  # False: like a server before 1.27
        self.lacks: frozenset[str] = frozenset()  # groups with their version, as an older server

    async def get(
        self, model: type[T], name: str, *, namespace: str = "", resource_version: str = ""
    ) -> T:
        def effect(route: Resource) -> Any:
            return self.server.get(route, namespace, name)

        return from_json(await self._serve("get", model, namespace, name, "", effect), model)

    async def serves(self, model: type[Any]) -> bool:
        version = route_of(model).api_version
        request = KubeRequest(trio.current_time(), "get", version, "", "", self.user.name)
        return bool(await self.desk.serve(request, lambda: version not in self.lacks))

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
        def effect(route: Resource) -> Any:
            matches = self.server.select(route, namespace, field_selector, label_selector)
            self.user.check_list(self._request("list", route, namespace), route, field_selector)
            # resourceVersion=0 is served from the watch cache, which ignores `limit`.
            return self.server.list(
                route, matches, 0 if resource_version == "0" else limit, continue_token
            )

        page = await self._serve("list", model, namespace, "", "", effect)
        items = tuple(from_json(item, model) for item in page.items)
        return ObjectList(items, str(page.version), page.continue_token)

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
        def effect(route: Resource) -> FakeWatch[T]:
            matches = self.server.select(route, namespace, field_selector, label_selector)
            self.user.check_list(self._request("watch", route, namespace), route, field_selector)
            # KEP-3157: a client must then list, and watch from the list's version.
            if send_initial_events and not self.streaming_lists:
                message = (
                    "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch "
                    "unless the WatchList feature gate is enabled"
                )
                raise KubeError(422, "Invalid", message)
            return FakeWatch(
                self.server.store, self.desk, route, model, matches,
                version=resource_version, initial_events=send_initial_events,
                # A real server ends a watch without a timeout after 30 to 60 minutes.
                ends_at=trio.current_time() + (timeout or 3600), period=self.bookmark_period,
            )  # fmt: skip

        yield await self._serve("watch", model, namespace, "", "", effect)

    async def create(
        self, obj: T, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> T:
        body = to_json(obj)
        name = name or (body.get("metadata") or {}).get("name", "")
        namespace = namespace or (body.get("metadata") or {}).get("namespace", "")

        def effect(route: Resource) -> Any:
            self.user.check_create(route, namespace, name, subresource, body)
            return self.server.create(route, body, namespace, name, subresource)

        answer = await self._serve("create", type(obj), namespace, name, subresource, effect)
        return from_json(answer, type(obj))

    async def update(self, obj: T, *, namespace: str = "", subresource: str = "") -> T:
        body = to_json(obj)
        name = (body.get("metadata") or {}).get("name", "")
        namespace = namespace or (body.get("metadata") or {}).get("namespace", "")

        def effect(route: Resource) -> Any:
            return self.server.update(
                route, body, namespace, subresource, check=self._checked(route, subresource)
            )

        answer = await self._serve("update", type(obj), namespace, name, subresource, effect)
        return from_json(answer, type(obj))

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
        plain = to_json(body)

        def effect(route: Resource) -> Any:
            return self.server.patch(
                route, name, plain, namespace, subresource, kind,
                check=self._checked(route, subresource),
            )  # fmt: skip

        answer = await self._serve("patch", model, namespace, name, subresource, effect)
        return from_json(answer, model)

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
        options = DeleteOptions(grace_period, uid, resource_version)

        def effect(route: Resource) -> Any:
            self.user.check_delete(route, self.server.get(route, namespace, name))
            return self.server.delete(route, name, namespace, options)

        await self._serve("delete", model, namespace, name, "", effect)

    async def delete_collection(
        self,
        model: type[Any],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
    ) -> None:
        def effect(route: Resource) -> Any:
            matches = self.server.select(route, namespace, field_selector, label_selector)
            request = self._request("deletecollection", route, namespace)
            self.user.check_list(request, route, field_selector)
            self.server.delete_collection(
                route, matches, lambda obj: self.user.check_delete(route, obj)
            )

        await self._serve("deletecollection", model, namespace, "", "", effect)

    def _checked(self, route: Resource, subresource: str) -> Callable[[Any, Any], None]:
        return lambda old, new: self.user.check_update(route, subresource, old, new)

    async def _serve(
        self,
        verb: str,
        model: type[Any],
        namespace: str,
        name: str,
        subresource: str,
        effect: Callable[[Resource], Any],
    ) -> Any:
        # A model without a route has no URL, so no request would reach a server.
        try:
            route = route_of(model)
        except LookupError as exc:
            raise KubeUnavailableError(str(exc)) from exc
        request = self._request(verb, route, namespace, name, subresource)
        return await self.desk.serve(request, lambda: self._authorized(request, route, effect))

    def _request(
        self, verb: str, route: Resource, namespace: str, name: str = "", subresource: str = ""
    ) -> KubeRequest:
        resource = f"{route.plural}/{subresource}" if subresource else route.plural
        return KubeRequest(trio.current_time(), verb, resource, namespace, name, self.user.name)

    def _authorized(
        self, request: KubeRequest, route: Resource, effect: Callable[[Resource], Any]
    ) -> Any:
        self.user.check(request, route)
        return effect(route)
