"""Nodes as the tests of this room want them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightkube.models.core_v1 import NodeSystemInfo

from kubelet_trio.node import NodeIdentity, NodeResources, NodeView

NOW = 1_767_225_600.0
INFO = NodeSystemInfo(
    machineID="machine",
    systemUUID="uuid",
    bootID="boot",
    kernelVersion="6.1.0",
    osImage="Debian GNU/Linux 12 (bookworm)",
    containerRuntimeVersion="containerd://1.7.2",
    kubeletVersion="v1.36.0",
    kubeProxyVersion="",
    operatingSystem="linux",
    architecture="amd64",
)
AMOUNTS = {"cpu": "2", "memory": "4Gi", "pods": "110", "ephemeral-storage": "50Gi"}
IDENTITY = NodeIdentity("node-1")


def view(**changes: Any) -> NodeView:
    base = NodeView(NOW, ("192.0.2.7",), NodeResources(AMOUNTS, AMOUNTS), INFO)
    return replace(base, **changes)
