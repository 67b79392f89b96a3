"""The verbs of a fake API server, on plain JSON values, synchronously."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubelet_trio.kube import (
    ROUTES,
    AlreadyExistsError,
    ConflictError,
    GoneError,
    KubeError,
    MergeKeyError,
    NotFoundError,
    PatchError,
    PatchKind,
    Resource,
    apply_json_patch,
    apply_merge,
    apply_strategic,
)
from kubelet_trio.model import WallClock, rfc3339
from kubelet_trio.testing.kube.kinds import forbidden, prepare_create, prepare_update
from kubelet_trio.testing.kube.resize import check_declared, prepare_resize
from kubelet_trio.testing.kube.reviews import Reviews
from kubelet_trio.testing.kube.rules import (
    check_changed,
    check_posted,
    check_result,
    check_sent,
    go_value,
    invalid,
)
from kubelet_trio.testing.kube.selectors import Match, selector
from kubelet_trio.testing.kube.store import Json, Store

Check = Callable[[Json, Json], None]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    items: list[Json]
    version: int
    continue_token: str = ""
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a deletion; see Kubernetes' type of that name."""

    grace_period: int | None = None
    uid: str = ""
    resource_version: str = ""


class FakeServer:
    """The rules of an API server over a store."""

    def __init__(self, clock: WallClock, namespaces: Sequence[str]) -> None:
        self.clock = clock
        self.store = Store()
        self.reviews = Reviews(self.store, clock)
        self._pages: dict[str, tuple[list[Json], int]] = {}
        for name in namespaces:
            self.create(ROUTES["Namespace"], {"metadata": {"name": name}})

    def get(self, route: Resource, namespace: str, name: str) -> Json:
        found = self.store.get(route.kind, namespace if route.namespaced else "", name)
        if found is None:
            raise not_found(route, name)
        return found

    def list(
        self, route: Resource, matches: Match, limit: int = 0, continue_token: str = ""
    ) -> Page:
        """Return a page; all pages of a list have one version, until that is compacted."""
        if continue_token:
            if continue_token not in self._pages:
                raise GoneError(410, "Expired", "The provided continue parameter is too old")
            left, version = self._pages.pop(continue_token)
            if version < self.store.compacted:
                raise GoneError(410, "Expired", "The provided continue parameter is too old")
        else:
            left = [obj for obj in self.store.all(route.kind) if matches(obj)]
            version = self.store.version
        if not limit or len(left) <= limit:
            return Page(left, version)
        meta = left[limit - 1]["metadata"]
        token = f"{version}/{meta.get('namespace', '')}/{meta['name']}"
        self._pages[token] = (left[limit:], version)
        return Page(left[:limit], version, token, len(left) - limit)

    def select(self, route: Resource, namespace: str, fields: str, labels: str) -> Match:
        return selector(route.kind, namespace if route.namespaced else "", fields, labels)

    def create(
        self,
        route: Resource,
        body: Json,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
    ) -> Json:
        if subresource:
            return self._create_below(route, body, namespace, name, subresource)
        check_sent(route, body)
        meta = body.get("metadata") or {}
        if route.namespaced:
            namespace = namespace or meta.get("namespace", "")
            self._check_namespace(route, namespace, meta)
        if (review := self.reviews.answer(route.kind, body)) is not None:
            return review
        obj = prepare_create(route, body, namespace, self.now(), self.store)
        name = obj["metadata"]["name"]
        if self.store.get(route.kind, obj["metadata"].get("namespace", ""), name) is not None:
            message = f'{route.qualified} "{name}" already exists'
            raise AlreadyExistsError(409, "AlreadyExists", message)
        return self.store.put(route.kind, obj)

    def update(
        self,
        route: Resource,
        body: Json,
        namespace: str = "",
        subresource: str = "",
        check: Check | None = None,
    ) -> Json:
        """Replace an object; `check` gets old and new state, and may raise."""
        check_sent(route, body)
        meta = body.get("metadata") or {}
        namespace = namespace or meta.get("namespace", "")
        old = self.get(route, namespace, meta.get("name", ""))
        return self._replace(route, old, body, subresource, check)

    def patch(
        self,
        route: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        subresource: str = "",
        kind: PatchKind = PatchKind.STRATEGIC,
        check: Check | None = None,
    ) -> Json:
        old = self.get(route, namespace, name)
        try:
            if kind is PatchKind.JSON:
                assert not isinstance(body, Mapping)
                new = apply_json_patch(old, body)
            else:
                assert isinstance(body, Mapping)
                strategic = kind is PatchKind.STRATEGIC
                new = (
                    apply_strategic(old, body, route.kind) if strategic else apply_merge(old, body)
                )
        # Upstream does not classify this error, so that it is a 500 without a reason.
        except MergeKeyError as exc:
            item = go_value(exc.item)
            message = f"map: {item} does not contain declared merge key: {exc.key}"
            raise KubeError(500, "", message) from exc
        except PatchError as exc:
            code, reason = (422, "Invalid") if kind is PatchKind.JSON else (400, "BadRequest")
            raise KubeError(code, reason, str(exc)) from exc
        check_result(route, new, body)
        return self._replace(route, old, copy.deepcopy(new), subresource, check, is_patch=True)

    def delete(
        self,
        route: Resource,
        name: str,
        namespace: str = "",
        options: DeleteOptions | None = None,
    ) -> Json:
        """Delete an object at once, or mark it; return its last or latest state."""
        options = options or DeleteOptions()
        old = self.get(route, namespace, name)
        _check_preconditions(route, old, options)
        if route.kind == "Namespace":
            return self._mark_namespace(old)
        grace = _grace(route, old, options.grace_period)
        meta = old["metadata"]
        deleting = "deletionTimestamp" in meta
        at_once = grace == 0 and not meta.get("finalizers")
        # Only pods have a graceful deletion; source of the rest: BeforeDelete in rest/delete.go.
        if at_once and route.kind != "Pod":
            return self.store.remove(route.kind, old)
        if deleting and meta.get("deletionGracePeriodSeconds", 0) <= grace:
            # A later deletion can only shorten the grace period.
            return self.store.remove(route.kind, old) if at_once else old
        new = {**old, "metadata": {**meta, "deletionGracePeriodSeconds": grace}}
        shorter = grace - meta.get("deletionGracePeriodSeconds", 0)
        new["metadata"]["deletionTimestamp"] = (
            _later(meta["deletionTimestamp"], shorter) if deleting else self.now(grace)
        )
        if meta.get("generation") and not deleting:
            new["metadata"]["generation"] = meta["generation"] + 1
        new = self.store.put(route.kind, new)
        # A pod is marked before it is deleted, even if that happens at once: a watch shows both.
        return self.store.remove(route.kind, new) if at_once else new

    def delete_collection(
        self, route: Resource, matches: Match, check: Callable[[Json], None] | None = None
    ) -> None:
        """Delete objects, one after the other; `check` gets each before, and may raise."""
        for obj in self.store.all(route.kind):
            if matches(obj):
                if check is not None:
                    check(obj)
                self.delete(route, obj["metadata"]["name"], obj["metadata"].get("namespace", ""))

    def now(self, later: float = 0.0) -> str:
        return rfc3339(self.clock.time() + later)

    def _replace(
        self,
        route: Resource,
        old: Json,
        body: Json,
        subresource: str,
        check: Check | None,
        *,
        is_patch: bool = False,
    ) -> Json:
        meta, was, name = body.get("metadata") or {}, old["metadata"], old["metadata"]["name"]
        if is_patch and meta.get("uid", was["uid"]) != was["uid"]:
            problem = f'metadata.uid: Invalid value: "{meta["uid"]}": field is immutable'
            raise invalid(route, name, problem)
        if meta.get("uid", was["uid"]) != was["uid"]:
            message = (
                f"Precondition failed: UID in precondition: {meta['uid']}, "
                f"UID in object meta: {was['uid']}"
            )
            raise conflict(route, name, message)
        # Without a version, or with "0", an update is unconditional.
        if meta.get("resourceVersion") not in (None, "", "0", was["resourceVersion"]):
            raise conflict(
                route, name, "the object has been modified; please apply your changes to the "
                "latest version and try again",
            )  # fmt: skip
        resizes = (route.kind, subresource) == ("Pod", "resize")
        if resizes:
            new = prepare_resize(old, body)
        else:
            new = prepare_update(route, old, body, subresource, self.store)
        if check is not None:
            check(old, new)
        check_changed(route, old, new, subresource)
        if resizes:
            check_declared(self.store, route, old, new)
        # As the real storage: an update without a change writes nothing, and no watch sees it.
        if new == old:
            return old
        # ShouldDeleteDuringUpdate (generic/registry/store.go): the last finalizer is removed.
        gone = "deletionTimestamp" in was and not new["metadata"].get("finalizers")
        if gone and not was.get("deletionGracePeriodSeconds"):
            return self.store.remove(route.kind, self.store.put(route.kind, new))
        return self.store.put(route.kind, new)

    def _create_below(
        self, route: Resource, body: Json, namespace: str, name: str, subresource: str
    ) -> Json:
        parent = self.get(route, namespace, name)
        check_posted(route, subresource, name, body)
        if (route.kind, subresource) == ("Pod", "binding"):
            if parent["spec"].get("nodeName"):
                node = parent["spec"]["nodeName"]
                raise conflict(route, name, f"pod {name} is already assigned to node {node!r}")
            spec = {**parent["spec"], "nodeName": body["target"]["name"]}
            condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.now()}
            conditions = [
                c for c in parent["status"].get("conditions") or () if c["type"] != "PodScheduled"
            ]
            status = {**parent["status"], "conditions": [*conditions, condition]}
            self.store.put(route.kind, {**parent, "spec": spec, "status": status})
            return body
        if (route.kind, subresource) == ("Pod", "eviction"):
            if (body.get("metadata") or {}).get("name", name) != name:
                message = "name in URL does not match name in Eviction object"
                raise KubeError(400, "BadRequest", message)
            wanted = body.get("deleteOptions") or {}
            uid = (wanted.get("preconditions") or {}).get("uid", "")
            options = DeleteOptions(wanted.get("gracePeriodSeconds"), uid)
            self.delete(route, name, namespace, options)
            return body
        if (route.kind, subresource) == ("ServiceAccount", "token"):
            return self.reviews.token(parent, body)
        raise NotFoundError(404, "NotFound", "the server could not find the requested resource")

    def _check_namespace(self, route: Resource, namespace: str, meta: Json) -> None:
        if meta.get("namespace") and meta["namespace"] != namespace:
            message = (
                "the namespace of the provided object does not match the namespace sent on "
                "the request"
            )
            raise KubeError(400, "BadRequest", message)
        found = self.store.get("Namespace", "", namespace)
        if found is None:
            raise not_found(ROUTES["Namespace"], namespace)
        if "deletionTimestamp" in found["metadata"]:
            name = meta.get("name", "")
            problem = (
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated"
            )
            raise forbidden(route, name, problem, ("NamespaceTerminating",))

    def _mark_namespace(self, old: Json) -> Json:
        """Mark a namespace as terminating; the controller that would empty it does not exist."""
        if "deletionTimestamp" in old["metadata"]:
            return old
        meta = {**old["metadata"], "deletionTimestamp": self.now()}
        return self.store.put(
            "Namespace", {**old, "metadata": meta, "status": {"phase": "Terminating"}}
        )


def _later(moment: str, seconds: int) -> str:
    """Return an API time so many seconds later."""
    then = datetime.datetime.fromisoformat(moment) + datetime.timedelta(seconds=seconds)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")


def _grace(route: Resource, obj: Json, asked: int | None) -> int:
    """Return an object's grace period in seconds; 0 for all but pods bound to a node."""
    if route.kind != "Pod":
        return 0
    spec, phase = obj["spec"], obj.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    # CheckGracefulDelete in pkg/registry/core/pod/strategy.go; a negative period is 1 s.
    own = spec.get("terminationGracePeriodSeconds", 30)
    seconds = own if asked is None else asked
    return int(1 if seconds < 0 else seconds)


def _check_preconditions(route: Resource, obj: Json, options: DeleteOptions) -> None:
    meta = obj["metadata"]
    if options.uid and options.uid != meta["uid"]:
        message = (
            f"Precondition failed: UID in precondition: {options.uid}, "
            f"UID in object meta: {meta['uid']}"
        )
        raise conflict(route, meta["name"], message)
    if options.resource_version and options.resource_version != meta["resourceVersion"]:
        message = (
            f"Precondition failed: ResourceVersion in precondition: {options.resource_version}, "
            f"ResourceVersion in object meta: {meta['resourceVersion']}"
        )
        raise conflict(route, meta["name"], message)


def not_found(route: Resource, name: str) -> NotFoundError:
    return NotFoundError(404, "NotFound", f'{route.qualified} "{name}" not found')


def conflict(route: Resource, name: str, problem: str) -> ConflictError:
    message = f'Operation cannot be fulfilled on {route.qualified} "{name}": {problem}'
    return ConflictError(409, "Conflict", message)
