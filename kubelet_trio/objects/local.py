"""Objects from manifests: config maps, secrets and volumes that the sources delivered.

The Go kubelet refuses a static pod that refers to any object. Here it may refer to documents
of the manifests. The sources' merge is the only writer; it writes the objects before the pods,
so that a pod finds the objects of its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kubelet_trio.model import PodUid
from kubelet_trio.objects.errors import ObjectNotFoundError
from kubelet_trio.objects.kinds import ApiObject, ObjectKey


class LocalObjects:
    """An `ObjectStore` in memory."""

    def __init__(self, changed: Callable[[PodUid], None] = lambda _uid: None) -> None:
        """Call `changed` for each pod when an object that it holds has changed."""
        self._changed = changed
        self._objects: Mapping[ObjectKey, ApiObject] = {}
        self._holders: dict[ObjectKey, set[PodUid]] = {}

    def apply(self, objects: Mapping[ObjectKey, ApiObject]) -> None:
        """Replace the set of objects, and notify the pods that hold a changed one."""
        before, self._objects = self._objects, objects
        changed = [key for key in {**before, **objects} if before.get(key) != objects.get(key)]
        holders: dict[PodUid, None] = {}  # each pod once, in order
        for key in changed:
            holders.update(dict.fromkeys(sorted(self._holders.get(key, ()))))
        for uid in holders:
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
        """Return a document; it is the same for every pod. Raises `ObjectNotFoundError`."""
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFoundError(key) from None

    @property
    def held(self) -> frozenset[ObjectKey]:
        """The keys that pods hold."""
        return frozenset(self._holders)
