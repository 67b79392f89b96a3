"""All targets."""

from __future__ import annotations

from tests.fuzz import cluster, connections, documents, plugins, records, runtime, texts, volumes

TARGETS = [
    *texts.TARGETS,
    *documents.TARGETS,
    *records.TARGETS,
    *runtime.TARGETS,
    *cluster.TARGETS,
    *connections.TARGETS,
    *plugins.TARGETS,
    *volumes.TARGETS,
]
