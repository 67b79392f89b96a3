"""All targets."""

from __future__ import annotations

from tests.fuzz import (
    claims,
    cluster,
    connections,
    devices,
    documents,
    node_sockets,
    plugins,
    records,
    runtime,
    texts,
    volumes,
)

TARGETS = [
    *texts.TARGETS,
    *documents.TARGETS,
    *records.TARGETS,
    *runtime.TARGETS,
    *cluster.TARGETS,
    *connections.TARGETS,
    *node_sockets.TARGETS,
    *plugins.TARGETS,
    *volumes.TARGETS,
    *devices.TARGETS,
    *claims.TARGETS,
]
