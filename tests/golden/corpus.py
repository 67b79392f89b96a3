"""The recorded data, and the corpus as an API server and its controllers would hold it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.pods import Json

DATA = Path(__file__).with_name("data")
NAMESPACE = "twin"
NODE = "twin-node"


@cache
def recorded(name: str) -> Any:
    """Return one file of the recorded data."""
    return json.loads((DATA / f"{name}.json").read_text())


def objects(kind: str) -> list[Json]:
    """Return the corpus' objects of a kind, as they were created."""
    return [obj for obj in recorded("corpus") if obj["kind"] == kind]


def admitted(pod: Json, words: dict[str, str]) -> Json:
    """Return a pod with its images and node, and with what admission adds to it.

    A service account's token comes from an admission plugin, which `FakeKube` has none of.
    """
    text = json.dumps(pod)
    for word, value in words.items():
        text = text.replace(f'"{word}"', json.dumps(value))
    made: Json = json.loads(text)
    spec = made["spec"]
    if made["metadata"]["name"] == _RACES:
        spec["initContainers"][0]["startupProbe"]["failureThreshold"] = 10
    spec.setdefault("serviceAccountName", "default")
    if spec.get("automountServiceAccountToken", True):
        name = "kube-api-access-abcde"
        mount = {"name": name, "readOnly": True, "mountPath": _ACCOUNT}
        spec["volumes"] = [*spec.get("volumes", ()), {"name": name, "projected": _TOKEN}]
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    return made


# Its file is there just as its third and last probe comes: on a busy machine it would be restarted.
# The Go kubelet's was not, so more tries change nothing of what that made of it.
_RACES = "sidecar-startup"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN: Json = {
    "defaultMode": 420,
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [
                    {
                        "path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                    }
                ]
            }
        },
    ],
}
