"""The seam to API objects: documents in the manifests, or an API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kubelet_trio.model import PodUid
from kubelet_trio.objects.errors import ObjectError, ObjectNotFoundError
from kubelet_trio.objects.kinds import ApiObject, ObjectKey

T = TypeVar("T", bound=ApiObject)


class ObjectStore(Protocol):
    """Reads objects for pods that have registered the keys they need.

    A pod holds the keys that it refers to for as long as it exists. A store can then watch just
    these keys, one watch per key, until the last pod releases it. When a held object appears,
    changes or disappears, the store notifies the pod by a callback of its constructor. The pod
    then reads again; a lost notification only delays it.
    """

    def hold(self, uid: PodUid, keys: Iterable[ObjectKey]) -> None:
        """Add keys to those that a pod holds. Never blocks."""
        ...

    def release(self, uid: PodUid) -> None:
        """Drop all keys that a pod holds, if any. Never blocks."""
        ...

    async def get(self, key: ObjectKey, uid: PodUid) -> ApiObject:
        """Return an object for a pod; the pod may decide where it is read from.

        Raises `ObjectNotFoundError`, or `ObjectError` if it cannot be read now.
        """
        ...


@dataclass(frozen=True, slots=True)
class ObjectView:
    """Objects read at one moment, or their errors, by key: for pure code and for threads."""

    # Secrets among them.
    found: Mapping[ObjectKey, ApiObject | ObjectError] = field(default_factory=dict, repr=False)

    def get(self, key: ObjectKey, kind: type[T]) -> T:
        """Return an object. Raises the ObjectError of its read; not read counts as not found."""
        value = self.found.get(key)
        if isinstance(value, ObjectError):
            raise value
        if not isinstance(value, kind):
            raise ObjectNotFoundError(key)
        return value

    def get_optional(self, key: ObjectKey, kind: type[T], *, optional: bool | None) -> T | None:
        """Return an object; None if it does not exist and `optional` is set.

        Raises ObjectError otherwise.
        """
        try:
            return self.get(key, kind)
        except ObjectNotFoundError:
            if optional:
                return None
            raise


NO_OBJECTS = ObjectView()


async def read_objects(store: ObjectStore, keys: Iterable[ObjectKey], uid: PodUid) -> ObjectView:
    """Read each of the keys once, for the pod that holds them."""
    found: dict[ObjectKey, ApiObject | ObjectError] = {}
    for key in dict.fromkeys(keys):
        try:
            found[key] = await store.get(key, uid)
        except ObjectError as exc:
            found[key] = exc
    return ObjectView(found)
