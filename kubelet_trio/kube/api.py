"""What every other room knows of an API server: the seam, its values and its errors.

`kube.client` is the real thing on HTTP, `testing.FakeKube` keeps its rules in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class PatchKind(Enum):
    """How the server is to read a patch's body; the value is its content type."""

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
    """One change, with the object's state after it (its last one when it was deleted)."""

    kind: WatchEventKind
    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """All changes up to a version have been seen. No object: servers leave it half empty.

    `ends_initial` is true once, after the objects of a watch with `send_initial_events`.
    """

    resource_version: str
    ends_initial: bool = False


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """One page of a list. `continue_token` is empty on the last one."""

    items: tuple[T, ...]
    resource_version: str
    continue_token: str = ""


class KubeError(Exception):
    """The API server refused, as its `Status` object says.

    `code` is the HTTP status, `reason` the machine's word (`NotFound`), `retry_after` seconds.
    """

    def __init__(
        self, code: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class NotFoundError(KubeError):
    """404."""


class AlreadyExistsError(KubeError):
    """409 `AlreadyExists`: a create met an object of that name."""


class ConflictError(KubeError):
    """409 `Conflict`: a precondition (resource version, UID) does not hold."""


class GoneError(KubeError):
    """410: the resource version asked for is too old; list again."""


class KubeUnavailableError(Exception):
    """No usable answer: no connection, a timeout, or an answer that is no API server's."""


# What comes out of a request to the API server.
API_ERRORS = (KubeError, KubeUnavailableError)


def error_of(code: int, reason: str, message: str, retry_after: float | None = None) -> KubeError:
    """Return the error for a refusal, of the class that its code and reason call for."""
    kind = KubeError
    if code == 404:
        kind = NotFoundError
    elif code == 409:
        kind = AlreadyExistsError if reason == "AlreadyExists" else ConflictError
    elif code == 410:
        kind = GoneError
    return kind(code, reason, message, retry_after)


class KubeApi(Protocol):
    """An API server, typed by lightkube's models (`Pod`, `Node`, `Lease`, ...).

    `namespace` is empty for what has none, and in lists and watches for all of them. Every
    call waits for the client's rate limit, and raises `KubeError` or `KubeUnavailableError`.
    """

    async def get(
        self, model: type[T], name: str, *, namespace: str = "", resource_version: str = ""
    ) -> T:
        """Return one object; `resource_version="0"` allows the server's cache to answer."""
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
    ) -> Listing[T]:
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

        The iterator ends when the server ends the watch (`timeout` seconds, or its own choice).
        It raises `GoneError` where the version is too old, on entering or later, other
        `KubeError`s and `KubeUnavailableError`.
        """
        ...

    async def create(
        self, obj: T, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> T:
        """Create an object; with `name` and `subresource` as for a TokenRequest."""
        ...

    async def update(self, obj: T, *, namespace: str = "", subresource: str = "") -> T:
        """Replace an object, its resource version being the precondition."""
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
        """Patch an object and return what it is then."""
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
        """Delete an object; UID and resource version are preconditions where given."""
        ...
