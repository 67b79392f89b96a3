"""What the kubernetes mixin's alerts and dashboards ask of a kubelet, as expressions of our own.

Each has the metrics and labels that theirs need, and shall have data.
"""

# ruff: noqa: E501  # an expression is one line
from __future__ import annotations

_KUBELET = 'job="kubelet",metrics_path="/metrics"'
_CADVISOR = 'job="kubelet",metrics_path="/metrics/cadvisor"'
_IN_POD = f'{_CADVISOR},container!="",image!="",namespace!=""'

# Of any node.
OF_A_NODE = (
    # Alerts: the kubelet is up, its pods start in time, its relists are short.
    f"up{{{_KUBELET}}} == 1",
    f"histogram_quantile(0.99, sum by (le, instance) (rate(kubelet_pleg_relist_duration_seconds_bucket{{{_KUBELET}}}[1m])))"
    f" * on (instance) group_left(node) kubelet_node_name{{{_KUBELET}}}",
    f"sum by (instance, le) (rate(kubelet_pod_worker_duration_seconds_bucket{{{_KUBELET}}}[1m]))",
    f"sum by (container, pod, namespace) (increase(container_cpu_cfs_throttled_periods_total{{{_IN_POD}}}[1m]))",
    f"sum by (container, pod, namespace) (increase(container_cpu_cfs_periods_total{{{_IN_POD}}}[1m]))",
    f"sum by (container) (increase(container_cpu_cfs_throttled_periods_total{{{_IN_POD}}}[1m])) / sum by (container) (increase(container_cpu_cfs_periods_total{{{_IN_POD}}}[1m]))",
    # The dashboard of the kubelet.
    f"sum(kubelet_node_name{{{_KUBELET}}})",
    f"sum(kubelet_running_pods{{{_KUBELET}}})",
    f"sum by (container_state) (kubelet_running_containers{{{_KUBELET}}})",
    f'sum(volume_manager_total_volumes{{{_KUBELET},state="actual_state_of_world"}})',
    f'sum(volume_manager_total_volumes{{{_KUBELET},state="desired_state_of_world"}})',
    f"sum by (operation_type, instance) (rate(kubelet_runtime_operations_total{{{_KUBELET}}}[1m]))",
    f"histogram_quantile(0.99, sum by (instance, operation_type, le) (rate(kubelet_runtime_operations_duration_seconds_bucket{{{_KUBELET}}}[1m])))",
    f"sum by (instance) (rate(kubelet_pod_start_duration_seconds_count{{{_KUBELET}}}[1m]))",
    f"sum by (instance) (rate(kubelet_pod_worker_duration_seconds_count{{{_KUBELET}}}[1m]))",
    f"histogram_quantile(0.99, sum by (instance, le) (kubelet_pod_start_duration_seconds_bucket{{{_KUBELET}}}))",
    f"sum by (instance, operation_name, volume_plugin) (rate(storage_operation_duration_seconds_count{{{_KUBELET}}}[1m]))",
    f"histogram_quantile(0.99, sum by (instance, operation_name, volume_plugin, le) (storage_operation_duration_seconds_bucket{{{_KUBELET}}}))",
    f"sum by (instance, operation_type) (rate(kubelet_cgroup_manager_duration_seconds_count{{{_KUBELET}}}[1m]))",
    f"histogram_quantile(0.99, sum by (instance, operation_type, le) (kubelet_cgroup_manager_duration_seconds_bucket{{{_KUBELET}}}))",
    f"sum by (instance) (rate(kubelet_pleg_relist_duration_seconds_count{{{_KUBELET}}}[1m]))",
    f"histogram_quantile(0.99, sum by (instance, le) (kubelet_pleg_relist_interval_seconds_bucket{{{_KUBELET}}}))",
    f"process_resident_memory_bytes{{{_KUBELET}}}",
    f"rate(process_cpu_seconds_total{{{_KUBELET}}}[1m])",
    f"go_goroutines{{{_KUBELET}}}",
    # Use of resources by pods, nodes and namespaces.
    f"sum by (cluster, namespace, pod, container) (irate(container_cpu_usage_seconds_total{{{_IN_POD}}}[1m]))",
    *(
        f"{name}{{{_IN_POD}}}"
        for name in (
            "container_memory_working_set_bytes",
            "container_memory_rss",
            "container_memory_cache",
            "container_memory_swap",
        )
    ),
    *(
        f'sum by (pod) (irate(container_network_{name}_total{{{_CADVISOR},namespace!=""}}[1m]))'
        for name in (
            "receive_bytes",
            "receive_packets",
            "receive_packets_dropped",
            "transmit_bytes",
            "transmit_packets",
            "transmit_packets_dropped",
        )
    ),
    *(
        f"sum by (device) (rate(container_fs_{name}_total{{{_CADVISOR}}}[1m]))"
        for name in ("reads", "writes")
    ),
    f"machine_memory_bytes{{{_CADVISOR}}}",
    f"machine_cpu_cores{{{_CADVISOR}}}",
    # metrics-server's page, and that of probes.
    'node_memory_working_set_bytes{job="kubelet"}',
    'pod_cpu_usage_seconds_total{job="kubelet"}',
    'prober_probe_total{job="kubelet",probe_type="Liveness"}',
)

# Of pods that read and write disks: their operations and bytes, by container and by pod.
_DISK = f'{_CADVISOR},device=~"(/dev/)?(mmcblk.p.+|nvme.+|rbd.+|sd.+|vd.+|xvd.+|dm-.+|md.+|dasd.+)",container!="",namespace!=""'
OF_DISKS = tuple(
    f"sum by ({by}) (rate(container_fs_{kind}_total{{{_DISK}}}[1m]))"
    for by in ("pod", "container")
    for kind in ("reads", "writes", "reads_bytes", "writes_bytes")
)

# Of nodes with an API server, and certificates from it that end within a week.
OF_A_CLUSTER = (
    f"kubelet_certificate_manager_client_ttl_seconds{{{_KUBELET}}} < 604800",
    f"kubelet_certificate_manager_server_ttl_seconds{{{_KUBELET}}} < 604800",
    f"sum by (code) (rate(rest_client_requests_total{{{_KUBELET}}}[1m]))",
    f"histogram_quantile(0.99, sum by (verb, host, le) (rate(rest_client_request_duration_seconds_bucket{{{_KUBELET}}}[1m])))",
)

# Of claims, or what has not happened on most nodes.
OTHERS = (
    f"increase(kubelet_server_expiration_renew_errors{{{_KUBELET}}}[5m]) > 0",
    f"increase(kubelet_certificate_manager_client_expiration_renew_errors{{{_KUBELET}}}[5m]) > 0",
    f"sum by (operation_type) (rate(kubelet_runtime_operations_errors_total{{{_KUBELET}}}[5m]))",
    f"kubelet_volume_stats_available_bytes{{{_KUBELET}}} / kubelet_volume_stats_capacity_bytes",
    f"kubelet_volume_stats_used_bytes{{{_KUBELET}}} > 0",
    f"kubelet_volume_stats_inodes_free{{{_KUBELET}}} / kubelet_volume_stats_inodes",
    f"kubelet_volume_stats_inodes_used{{{_KUBELET}}} > 0",
    f"increase(kubelet_evictions{{{_KUBELET}}}[15m])",
)
