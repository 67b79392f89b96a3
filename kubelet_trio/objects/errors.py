"""Errors of reading an object.

ObjectError               it cannot be read now; the text is for the pod's event or status
└── ObjectNotFoundError   it does not exist; a reference with `optional` ignores this
"""

from __future__ import annotations

from kubelet_trio.objects.kinds import ObjectKey


class ObjectError(Exception):
    """An object cannot be read now. Trying again later may succeed."""


class ObjectNotFoundError(ObjectError):
    """The object does not exist. The text is the API server's, which people search for."""

    def __init__(self, key: ObjectKey) -> None:
        super().__init__(f'{_RESOURCES[key.kind]} "{key.name}" not found')
        self.key = key


_RESOURCES = {
    "ConfigMap": "configmap",
    "Secret": "secret",
    "PersistentVolumeClaim": "persistentvolumeclaim",
    "PersistentVolume": "persistentvolume",
    "RuntimeClass": "runtimeclass.node.k8s.io",
    "CSIDriver": "csidriver.storage.k8s.io",
    "StorageClass": "storageclass.storage.k8s.io",
}
