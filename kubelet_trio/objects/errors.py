"""Why an object cannot be had.

ObjectError               not now: the text is for the pod's event or status
└── ObjectNotFoundError   there is none of this name: what `optional` forgives
"""

from __future__ import annotations

from kubelet_trio.objects.types import ObjectKey


class ObjectError(Exception):
    """An object cannot be had now. Asking again later is always right."""


class ObjectNotFoundError(ObjectError):
    """There is no such object. The text is the API server's, which people search for."""

    def __init__(self, key: ObjectKey) -> None:
        super().__init__(f'{_RESOURCES[key.kind]} "{key.name}" not found')
        self.key = key


_RESOURCES = {
    "ConfigMap": "configmap",
    "Secret": "secret",
    "PersistentVolumeClaim": "persistentvolumeclaim",
    "PersistentVolume": "persistentvolume",
    "RuntimeClass": "runtimeclass.node.k8s.io",
}
