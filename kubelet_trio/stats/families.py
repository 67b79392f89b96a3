"""The families of `/metrics`, `/metrics/probes` and `/metrics/slis`: kind, help and label names.

Source: pkg/kubelet/metrics/metrics.go, pkg/kubelet/prober/prober_manager.go and component-base.
Other rooms count under these names; the pages do not show a name that is missing here.
"""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """One metric."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


_OPERATION = ("operation_type",)
_STATIC = ("static",)
_HANDLER = ("runtime_handler",)
_PLUGIN = ("plugin_name",)
_WHERE = ("host", "verb")

# Names and help texts are upstream's, misspellings included, so that dashboards fit.
# ruff: noqa: E501  # a table is read by its columns
# fmt: off
FAMILIES: dict[str, Family] = {
    "kubernetes_build_info": Family("gauge", "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.", ("build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version", "major", "minor", "platform")),
    "kubelet_node_name": Family("gauge", "[ALPHA] The node's name. The count is always 1.", ("node",)),
    "kubelet_cgroup_version": Family("gauge", "[ALPHA] cgroup version on the hosts."),
    "kubelet_cgroup_manager_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.", _OPERATION),
    "kubelet_pod_worker_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", _OPERATION),
    "kubelet_pod_worker_start_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker."),
    "kubelet_containers_per_pod_count": Family("histogram", "[ALPHA] The number of containers per pod."),
    "kubelet_pod_start_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run"),
    "kubelet_pod_start_sli_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch"),
    "kubelet_pod_start_total_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch"),
    "kubelet_pod_status_sync_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur."),
    "kubelet_pleg_relist_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds for relisting pods in PLEG."),
    "kubelet_pleg_relist_interval_seconds": Family("histogram", "[ALPHA] Interval in seconds between relisting in PLEG."),
    "kubelet_pleg_last_seen_seconds": Family("gauge", "[ALPHA] Timestamp in seconds when PLEG was last seen active."),
    "kubelet_evented_pleg_connection_success_count": Family("counter", "[ALPHA] The number of times a streaming client was obtained to receive CRI Events."),
    "kubelet_evented_pleg_connection_error_count": Family("counter", "[ALPHA] The number of errors encountered during the establishment of streaming connection with the CRI runtime."),
    "kubelet_runtime_operations_total": Family("counter", "[ALPHA] Cumulative number of runtime operations by operation type.", _OPERATION),
    "kubelet_runtime_operations_errors_total": Family("counter", "[ALPHA] Cumulative number of runtime operation errors by operation type.", _OPERATION),
    "kubelet_runtime_operations_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.", _OPERATION),
    "kubelet_run_podsandbox_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.", _HANDLER),
    "kubelet_run_podsandbox_errors_total": Family("counter", "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", _HANDLER),
    "kubelet_image_pull_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds to pull an image.", ("image_size_in_bytes",)),
    "kubelet_image_volume_requested_total": Family("counter", "[ALPHA] Number of requested image volumes."),
    "kubelet_image_volume_mounted_succeed_total": Family("counter", "[ALPHA] Number of successful image volume mounts."),
    "kubelet_image_volume_mounted_errors_total": Family("counter", "[ALPHA] Number of failed image volume mounts."),
    "kubelet_credential_provider_plugin_duration": Family("histogram", "[ALPHA] Duration of execution in seconds for credential provider plugin", _PLUGIN),
    "kubelet_credential_provider_plugin_errors_total": Family("counter", "[ALPHA] Number of errors from credential provider plugin", _PLUGIN),
    "kubelet_running_pods": Family("gauge", "[ALPHA] Number of pods that have a running pod sandbox"),
    "kubelet_running_containers": Family("gauge", "[ALPHA] Number of containers currently running", ("container_state",)),
    "kubelet_desired_pods": Family("gauge", "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", _STATIC),
    "kubelet_active_pods": Family("gauge", "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.", _STATIC),
    "kubelet_mirror_pods": Family("gauge", "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)"),
    "kubelet_working_pods": Family("gauge", "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.", ("lifecycle", "config", "static")),
    "kubelet_managed_ephemeral_containers": Family("gauge", "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet."),
    "kubelet_restarted_pods_total": Family("counter", "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)", _STATIC),
    "kubelet_orphaned_runtime_pods_total": Family("counter", "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual."),
    "kubelet_admission_rejections_total": Family("counter", "[ALPHA] Cumulative number pod admission rejections by the Kubelet.", ("reason",)),
    "kubelet_container_requested_resizes_total": Family("counter", "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.", ("resource", "requirement", "operation")),
    "kubelet_pod_resize_duration_milliseconds": Family("histogram", "[ALPHA] Duration in milliseconds to actuate a pod resize", ("success",)),
    "kubelet_pod_pending_resizes": Family("gauge", "[ALPHA] Number of pending resizes for pods.", ("reason",)),
    "kubelet_pod_infeasible_resizes_total": Family("counter", "[ALPHA] Number of infeasible resizes for pods.", ("reason_detail",)),
    "kubelet_pod_in_progress_resizes": Family("gauge", "[ALPHA] Number of in-progress resizes for pods."),
    "kubelet_pod_deferred_accepted_resizes_total": Family("counter", "[ALPHA] Cumulative number of resizes that were accepted after being deferred.", ("retry_trigger",)),
    "kubelet_started_pods_total": Family("counter", "[ALPHA] Cumulative number of pods started"),
    "kubelet_started_pods_errors_total": Family("counter", "[ALPHA] Cumulative number of errors when starting pods"),
    "kubelet_started_user_namespaced_pods_total": Family("counter", "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux."),
    "kubelet_started_user_namespaced_pods_errors_total": Family("counter", "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux."),
    "kubelet_started_containers_total": Family("counter", "[ALPHA] Cumulative number of containers started", ("container_type",)),
    "kubelet_started_containers_errors_total": Family("counter", "[ALPHA] Cumulative number of errors when starting containers", ("container_type", "code")),
    "kubelet_terminated_containers_total": Family("counter", "[ALPHA] Cumulative number of containers terminated", ("container_type", "exit_code", "reason")),
    "kubelet_image_manager_ensure_image_requests_total": Family("counter", "[ALPHA] Number of ensure-image requests processed by the kubelet.", ("present_locally", "pull_policy", "pull_required")),
    "kubelet_lifecycle_handler_http_fallbacks_total": Family("counter", "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https."),
    "kubelet_sleep_action_terminated_early_total": Family("counter", "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes"),
    "kubelet_evictions": Family("counter", "[ALPHA] Cumulative number of pod evictions by eviction signal", ("eviction_signal",)),
    "kubelet_eviction_stats_age_seconds": Family("histogram", "[ALPHA] Time between when stats are collected, and when pod is evicted based on those stats by eviction signal", ("eviction_signal",)),
    "kubelet_preemptions": Family("counter", "[ALPHA] Cumulative number of pod preemptions by preemption resource", ("preemption_signal",)),
    "kubelet_graceful_shutdown_start_time_seconds": Family("gauge", "[ALPHA] Last graceful shutdown start time since unix epoch in seconds"),
    "kubelet_graceful_shutdown_end_time_seconds": Family("gauge", "[ALPHA] Last graceful shutdown end time since unix epoch in seconds"),
    "kubelet_image_garbage_collected_total": Family("counter", "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.", ("reason",)),
    "kubelet_http_requests_total": Family("counter", "[ALPHA] Number of the http requests received since the server started", ("long_running", "method", "path", "server_type")),
    "kubelet_http_requests_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds to serve http requests", ("long_running", "method", "path", "server_type")),
    "kubelet_http_inflight_requests": Family("gauge", "[ALPHA] Number of the inflight http requests", ("long_running", "method", "path", "server_type")),
    "kubelet_websocket_streaming_requests_total": Family("counter", "[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.", ("subresource",)),
    "kubelet_podcertificate_states": Family("gauge", "[ALPHA] Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.", ("signer_name", "state")),
    "kubelet_certificate_manager_client_ttl_seconds": Family("gauge", "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF."),
    "kubelet_certificate_manager_server_ttl_seconds": Family("gauge", "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF."),
    "kubelet_certificate_manager_client_expiration_renew_errors": Family("counter", "[ALPHA] Counter of certificate renewal errors."),
    "kubelet_certificate_manager_server_rotation_seconds": Family("histogram", "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated."),
    "kubelet_server_expiration_renew_errors": Family("counter", "[ALPHA] Counter of certificate renewal errors."),
    "rest_client_requests_total": Family("counter", "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.", ("code", "host", "method")),
    "rest_client_request_duration_seconds": Family("histogram", "[ALPHA] Request latency in seconds. Broken down by verb, and host.", _WHERE),
    "rest_client_rate_limiter_duration_seconds": Family("histogram", "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.", _WHERE),
    "plugin_manager_total_plugins": Family("gauge", "[ALPHA] Number of plugins in Plugin Manager", ("socket_path", "state")),
    "volume_manager_selinux_container_errors_total": Family("gauge", "[ALPHA] Number of errors when kubelet cannot compute SELinux context for a container. Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual nr. of containers.", ("access_mode",)),
    "volume_manager_selinux_container_warnings_total": Family("gauge", "[ALPHA] Number of errors when kubelet cannot compute SELinux context for a container that are ignored. They will become real errors when SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.", ("access_mode",)),
    "volume_manager_selinux_pod_context_mismatch_errors_total": Family("gauge", "[ALPHA] Number of errors when a Pod defines different SELinux contexts for its containers that use the same volume. Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual nr. of Pods.", ("access_mode",)),
    "volume_manager_selinux_pod_context_mismatch_warnings_total": Family("gauge", "[ALPHA] Number of errors when a Pod defines different SELinux contexts for its containers that use the same volume. They are not errors yet, but they will become real errors when SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.", ("access_mode",)),
    "volume_manager_selinux_volume_context_mismatch_errors_total": Family("gauge", "[ALPHA] Number of errors when a Pod uses a volume that is already mounted with a different SELinux context than the Pod needs. Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual nr. of Pods.", ("access_mode", "volume_plugin")),
    "volume_manager_selinux_volume_context_mismatch_warnings_total": Family("gauge", "[ALPHA] Number of errors when a Pod uses a volume that is already mounted with a different SELinux context than the Pod needs. They are not errors yet, but they will become real errors when SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.", ("access_mode", "volume_plugin")),
    "volume_manager_selinux_volumes_admitted_total": Family("gauge", "[ALPHA] Number of volumes whose SELinux context was fine and will be mounted with mount -o context option.", ("access_mode", "volume_plugin")),
    "volume_manager_total_volumes": Family("gauge", "[ALPHA] Number of volumes in Volume Manager", ("plugin_name", "state")),
    "storage_operation_duration_seconds": Family("histogram", "[ALPHA] Storage operation duration", ("migrated", "operation_name", "status", "volume_plugin")),
    "csi_operations_seconds": Family("histogram", "[ALPHA] Container Storage Interface operation duration with gRPC error code status total", ("driver_name", "method_name", "grpc_status_code", "migrated")),
    "kubelet_orphan_pod_cleaned_volumes": Family("gauge", "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep."),
    "kubelet_orphan_pod_cleaned_volumes_errors": Family("gauge", "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep."),
    "kubelet_container_log_filesystem_used_bytes": Family("gauge", "[ALPHA] Bytes used by the container's logs on the filesystem.", ("uid", "namespace", "pod", "container")),
    "kubelet_volume_stats_capacity_bytes": Family("gauge", "[ALPHA] Capacity in bytes of the volume", ("namespace", "persistentvolumeclaim")),
    "kubelet_volume_stats_available_bytes": Family("gauge", "[ALPHA] Number of available bytes in the volume", ("namespace", "persistentvolumeclaim")),
    "kubelet_volume_stats_used_bytes": Family("gauge", "[ALPHA] Number of used bytes in the volume", ("namespace", "persistentvolumeclaim")),
    "kubelet_volume_stats_inodes": Family("gauge", "[ALPHA] Maximum number of inodes in the volume", ("namespace", "persistentvolumeclaim")),
    "kubelet_volume_stats_inodes_free": Family("gauge", "[ALPHA] Number of free inodes in the volume", ("namespace", "persistentvolumeclaim")),
    "kubelet_volume_stats_inodes_used": Family("gauge", "[ALPHA] Number of used inodes in the volume", ("namespace", "persistentvolumeclaim")),
    "kubelet_volume_stats_health_status_abnormal": Family("gauge", "[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy", ("namespace", "persistentvolumeclaim")),
    "kubernetes_healthcheck": Family("gauge", "[STABLE] This metric records the result of a single healthcheck.", ("name", "type")),
    "kubernetes_healthchecks_total": Family("counter", "[STABLE] This metric records the results of all healthcheck.", ("name", "status", "type")),
    "prober_probe_total": Family("counter", "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.", ("container", "namespace", "pod", "pod_uid", "probe_type", "result")),
    "prober_probe_duration_seconds": Family("histogram", "[ALPHA] Duration in seconds for a probe response.", ("container", "namespace", "pod", "probe_type")),
    "process_cpu_seconds_total": Family("counter", "Total user and system CPU time spent in seconds."),
    "process_max_fds": Family("gauge", "Maximum number of open file descriptors."),
    "process_open_fds": Family("gauge", "Number of open file descriptors."),
    "process_resident_memory_bytes": Family("gauge", "Resident memory size in bytes."),
    "process_start_time_seconds": Family("gauge", "Start time of the process since unix epoch in seconds."),
    "process_virtual_memory_bytes": Family("gauge", "Virtual memory size in bytes."),
    "kubelet_trio_child_restarts_total": Family("counter", "Restarts of each part of the supervision tree; kubelet/pods/* is all pods' workers and probes.", ("child",)),
    "kubelet_trio_channel_depth": Family("gauge", "What waits in a channel.", ("channel",)),
    "kubelet_trio_events_dropped_total": Family("counter", "Events dropped because too many waited."),
    "kubelet_trio_log_rotations_total": Family("counter", "Container logs rotated."),
    "kubelet_trio_tasks": Family("gauge", "Tasks of the event loop.", ("state",)),
    "kubelet_trio_worker_threads": Family("gauge", "Worker threads in use."),
    "kubelet_trio_event_loop_lag_seconds": Family("gauge", "How much longer than asked the event loop slept, measured by this scrape."),
}
