"""An agent in the test's own process, on a real containerd, fed by hand as an API server would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent, make_agent
from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import Apis, build_agent
from kubelet_trio.managers import load_managers
from kubelet_trio.model import CONFIG_SOURCE, metadata
from kubelet_trio.pods import load_records
from tests.agent.node import Feed
from tests.harness.containerd import Containerd
from tests.harness.machine import CGROUP_DRIVER
from tests.harness.pod_files import load_pods
from tests.harness.pods import Json


def inside_agent(
    containerd: Containerd, base: Path, config: Json, apis: Apis | None = None, **replaced: Any
) -> tuple[Agent, Feed]:
    """Return an agent that the test runs, and what feeds it.

    Args:
        containerd: its runtime.
        base: where its files go.
        config: fields of its KubeletConfiguration.
        apis: the API server that it is a node of, if any; its pods come from the feed still.
        replaced: fields of its `Seams`, in the place of the daemon's.
    """
    built = _build(containerd, base, config, apis)
    feed = Feed()
    cluster = built.seams.cluster
    seams = replace(
        built.seams,
        sources=(feed,),
        cluster=replace(cluster, has_pods=False) if cluster is not None else None,
        **replaced,
    )
    return make_agent(built.settings, seams), feed


def cluster_agent(
    containerd: Containerd, base: Path, config: Json, apis: Apis, *arguments: str
) -> Agent:
    """Return an agent whose pods come from its API server, with what an earlier one has left."""
    built = _build(containerd, base, config, apis, *arguments)
    root = base / "root"
    managers = load_managers(built.settings.managers, root, device_plugins=True)
    records = load_records(root / "pods")
    return make_agent(built.settings, built.seams, records, managers=managers)


def _build(
    containerd: Containerd, base: Path, config: Json, apis: Apis | None, *arguments: str
) -> Agent:
    whole: Json = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "podLogsDir": str(base / "logs"),
        "containerRuntimeEndpoint": containerd.endpoint,
        "cgroupDriver": CGROUP_DRIVER,
        "cgroupRoot": containerd.layout.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": ["10.96.0.10"],
        **config,
    }
    path = base / "config.yaml"
    path.write_text(yaml.safe_dump(whole))
    named = [f"--root-dir={base / 'root'}", "--hostname-override=node"]
    return build_agent(load_settings([f"--config={path}", *named, *arguments]), {}, apis)


def api_pod(manifest: Json) -> Pod:
    """Return a pod as an API server would have sent it: not static, so not critical."""
    (loaded,) = load_pods(msgspec.json.encode(manifest), "pod.json", node_name="node")
    meta = metadata(loaded)
    annotations = {**(meta.annotations or {}), CONFIG_SOURCE: "api"}
    meta = msgspec.structs.replace(meta, annotations=annotations)
    return msgspec.structs.replace(loaded, metadata=meta)
