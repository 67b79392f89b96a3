"""The seam to where objects are: documents beside the manifests, or an API server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kubelet_trio.model import PodUid
from kubelet_trio.objects.types import ApiObject, ObjectKey


class ObjectStore(Protocol):
    """Gives objects to pods that said which ones they need.

    A pod holds the keys that it refers to for as long as it lives, so that a store can watch
    just these, once however many pods hold one, and stop when the last one lets go. When an
    object that a pod holds appears, changes or goes, the pod is told (how is the
    implementation's constructor's business): it reads again, and loses nothing if it was not.
    """

    def hold(self, uid: PodUid, keys: Iterable[ObjectKey]) -> None:
        """Add to what a pod refers to. Never blocks."""
        ...

    def release(self, uid: PodUid) -> None:
        """Drop all that a pod holds; none is no error. Never blocks."""
        ...

    async def get(self, key: ObjectKey, uid: PodUid) -> ApiObject:
        """Return an object to the pod that holds it: whose it is may decide where it is read.

        Raises `ObjectNotFoundError`, or `ObjectError` where it cannot be told yet.
        """
        ...
