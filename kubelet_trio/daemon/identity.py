"""The node as the configuration describes it: its name, labels, taints and resources."""

from __future__ import annotations

from lightkube.models.core_v1 import Taint

from kubelet_trio.agent import OwnNode
from kubelet_trio.config import Settings
from kubelet_trio.containers import NodeSettings
from kubelet_trio.node import NodeCapacity, NodeIdentity, go_arch, resources_of, system_info

# The Kubernetes version whose behaviour this agent has, for version skew checks; the suffix is
# build metadata, which comparisons ignore (https://semver.org).
KUBELET_VERSION = "v1.36.2+kubelet-trio"


def own_node(settings: Settings, node: NodeSettings, capacity: NodeCapacity) -> OwnNode:
    """Return what the node's object is made of."""
    return OwnNode(
        node_identity(settings, node),
        resources_of(capacity),
        lambda runtime: system_info(KUBELET_VERSION, runtime),
        node.host_ips,
    )


def node_identity(settings: Settings, node: NodeSettings) -> NodeIdentity:
    """Return the settings of the node's object."""
    config, flags = settings.config, settings.flags
    return NodeIdentity(
        node.node_name,
        labels=flags.node_labels,
        taints=tuple(
            Taint(key=t.key, value=t.value or None, effect=t.effect)
            for t in config.register_with_taints
        ),
        unschedulable=not flags.register_schedulable,
        register=config.register_node,
        provider_id=config.provider_id,
        external_cloud=flags.cloud_provider == "external",
        # 0.0.0.0 and :: choose a family, not an address.
        node_ips=node.host_ips if flags.node_ip not in ("", "0.0.0.0", "::") else (),
        has_node_ip=bool(flags.node_ip),
        attach_detach=config.enable_controller_attach_detach,
        keep_terminated_volumes=flags.keep_terminated_pod_volumes,
        port=config.port if config.enable_server else 0,
        max_images=config.node_status_max_images,
        local_storage=config.local_storage_capacity_isolation,
        get_on_exists_only=config.feature_gates.get("KubeletRegistrationGetOnExistsOnly", False),
        gates_off=frozenset(name for name, is_on in config.feature_gates.items() if not is_on),
        arch=go_arch(),
    )
