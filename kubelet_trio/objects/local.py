"""The objects of a node without an API server: those that its sources delivered.

A Go kubelet refuses a static pod that refers to any object. Here the config maps, secrets
and volumes in the manifests directory serve the pods beside them. The sources' merge is
the only writer; it writes the objects before the pods, so a pod of the same file finds
them. Nothing is watched here, so holding keys costs a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kubelet_trio.model import PodUid
from kubelet_trio.objects.errors import ObjectNotFoundError
from kubelet_trio.objects.types import ApiObject, ObjectKey


class LocalObjects:
    """An `ObjectStore` in memory."""

    def __init__(self, changed: Callable[[PodUid], None] = lambda _uid: None) -> None:
        """Call `changed` for each pod that holds an object which is now another."""
        self._changed = changed
        self._objects: Mapping[ObjectKey, ApiObject] = {}
        self._holders: dict[ObjectKey, set[PodUid]] = {}

    def apply(self, objects: Mapping[ObjectKey, ApiObject]) -> None:
        """Take over the newest full set, and tell the pods that it concerns."""
        before, self._objects = self._objects, objects
        changed = [key for key in {**before, **objects} if before.get(key) != objects.get(key)]
        told: dict[PodUid, None] = {}
        for key in changed:
            told.update(dict.fromkeys(sorted(self._holders.get(key, ()))))
        for uid in told:
            self._changed(uid)

    def hold(self, uid: PodUid, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self._holders.setdefault(key, set()).add(uid)

    def release(self, uid: PodUid) -> None:
        for key, holders in list(self._holders.items()):
            holders.discard(uid)
            if not holders:
                del self._holders[key]

    async def get(self, key: ObjectKey, uid: PodUid | None = None) -> ApiObject:
        """See `ObjectStore`; every pod of the node reads the same documents."""
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFoundError(key) from None

    @property
    def held(self) -> frozenset[ObjectKey]:
        """What any pod refers to."""
        return frozenset(self._holders)
