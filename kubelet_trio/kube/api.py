"""The seam to the API server: `KubeApi` and its values.

`kube.client` implements it over HTTP; `testing.FakeKube` follows the same rules in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")


class PatchKind(Enum):
    """The kind of a patch; the value is the content type of its body."""

    STRATEGIC = "application/strategic-merge-patch+json"
    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


class WatchEventKind(Enum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change, with the object's new state; of a deleted object its last state."""

    kind: WatchEventKind
    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The watch has sent all changes up to a resource version.

    `ends_initial` is true once: after the initial objects of a watch with `send_initial_events`.
    """

    resource_version: str
    ends_initial: bool = False


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """One page of a list. `continue_token` is empty on the last one."""

    items: tuple[T, ...]
    resource_version: str
    continue_token: str = ""


def is_newer(obj: object, than: object) -> bool:
    """Return whether one state of an object is later than another.

    Resource versions of one kind are growing numbers in Kubernetes. If a server has other ones, the
    state that arrives last counts.
    """
    one, other = (cast("Any", state).metadata.resourceVersion or "" for state in (obj, than))
    if one.isdigit() and other.isdigit():
        return int(one) > int(other)
    return bool(one != other)


class KubeApi(Protocol):
    """An API server, typed by lightkube's models (`Pod`, `Node`, `Lease`, ...).

    `namespace` is empty for cluster-scoped objects, and in lists and watches for all namespaces.
    Every call waits for the client's rate limit and raises `API_ERRORS`.
    """

    async def get(
        self, model: type[T], name: str, *, namespace: str = "", resource_version: str = ""
    ) -> T:
        """Return one object; `resource_version="0"` allows an answer from the server's cache."""
        ...

    async def serves(self, model: type[Any]) -> bool:
        """Whether the server has the group and version of a model: an older one may not.

        It refuses what it does not have as forbidden, since a node has no right to it there.
        """
        ...

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
        """Return one page of objects."""
        ...

    def watch(
        self,
        model: type[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        timeout: int = 0,
        send_initial_events: bool = False,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T] | Bookmark]]:
        """Watch for changes after a resource version, bookmarks included.

        The iterator ends when the server ends the watch, after `timeout` seconds or earlier.
        Entering and iterating raise `GoneError` if the version is too old, other `KubeError`s
        and `KubeUnavailableError`.
        """
        ...

    async def create(
        self, obj: T, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> T:
        """Create an object; with `name` and `subresource` below another, as a TokenRequest."""
        ...

    async def update(self, obj: T, *, namespace: str = "", subresource: str = "") -> T:
        """Replace an object; its resource version is the precondition."""
        ...

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
        """Patch an object and return its new state."""
        ...

    async def delete(
        self,
        model: type[T],
        name: str,
        *,
        namespace: str = "",
        grace_period: int | None = None,
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """Delete an object; UID and resource version are preconditions if given."""
        ...

    async def delete_collection(
        self,
        model: type[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
    ) -> None:
        """Delete all objects that the selectors match; there may be none."""
        ...
