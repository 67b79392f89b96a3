"""What was read of a store at one moment: for pure code and for threads.

Resolving an environment or a volume is plain computing over objects. So they are read
first, all that may be needed, and handed on as a value that also holds what went wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kubelet_trio.model import PodUid
from kubelet_trio.objects.errors import ObjectError, ObjectNotFoundError
from kubelet_trio.objects.store import ObjectStore
from kubelet_trio.objects.types import ApiObject, ObjectKey

T = TypeVar("T", bound=ApiObject)


@dataclass(frozen=True, slots=True)
class ObjectView:
    """Objects, or the reason why there is none, by key."""

    found: Mapping[ObjectKey, ApiObject | ObjectError] = field(default_factory=dict)

    def get(self, key: ObjectKey, kind: type[T]) -> T:
        """Return an object. Raises what reading it raised; one that was not read is missing."""
        value = self.found.get(key)
        if isinstance(value, ObjectError):
            raise value
        if not isinstance(value, kind):
            raise ObjectNotFoundError(key)
        return value

    def get_optional(self, key: ObjectKey, kind: type[T], *, optional: bool | None) -> T | None:
        """Return an object; None where there is none and that is all right."""
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
