"""Turns pods and containers into CRI configs, and CRI statuses into records."""

from kubelet_trio.containers.config import ContainerInputs, container_config
from kubelet_trio.containers.dns import pod_dns, resolv_conf_problem
from kubelet_trio.containers.env.downward import PodFacts, field_value, resource_value
from kubelet_trio.containers.env.expansion import expand_from
from kubelet_trio.containers.env.files import MAX_ENV_FILE, EnvFileValues, parse_env_file
from kubelet_trio.containers.env.services import service_variables
from kubelet_trio.containers.env.variables import Environment, container_env, sub_path
from kubelet_trio.containers.errors import ContainerConfigError, PodConfigError, SandboxConfigError
from kubelet_trio.containers.hosts import (
    has_hosts,
    hosts_content,
    hosts_mount,
    mounts_own_hosts,
    write_hosts,
)
from kubelet_trio.containers.labels import (
    CONTAINER_NAME,
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    TERMINATION_MESSAGE_PATH,
    PodIdentity,
    container_hash,
    container_info,
    owned_by,
    pod_identity,
    pod_labels_of,
)
from kubelet_trio.containers.logs.cri_log import LogFile, LogOptions, LogRenderer
from kubelet_trio.containers.logs.files import (
    OWN_DIRECTORY,
    OWN_LOG,
    link_log,
    make_log_directory,
    next_restart_count,
    open_log_directory,
    remove_links,
    remove_pod_logs,
    unlink_logs,
)
from kubelet_trio.containers.logs.follow import LogWatch, follow_log, inotify_watch, poll_watch
from kubelet_trio.containers.node import (
    NodeSettings,
    hugepage_sizes,
    is_selinux_on,
    masked_paths,
    memory_capacity,
    read_resolv_conf,
    without_quota,
)
from kubelet_trio.containers.paths import (
    container_log_path,
    log_link,
    make_directories,
    pod_log_directory,
)
from kubelet_trio.containers.records import container_record, container_state, sandbox_record
from kubelet_trio.containers.resources.allocation import (
    differs,
    effective_resources,
    increases_requests,
    same_resources,
    with_allocated,
    with_larger,
    with_resources,
)
from kubelet_trio.containers.resources.amounts import (
    RESIZABLE,
    amounts,
    container_amounts,
    declares_limit,
    pod_level,
    pod_limits,
    pod_qos,
    pod_requests,
    resizable_amounts,
    total_quantities,
)
from kubelet_trio.containers.resources.cgroups import (
    node_cgroup_limits,
    pod_cgroup_limits,
    protected_memory,
    qos_cgroup_limits,
    unreserved_memory,
)
from kubelet_trio.containers.resources.container import (
    may_swap,
    overhead_resources,
    pod_memory_limit,
)
from kubelet_trio.containers.resources.found import as_found
from kubelet_trio.containers.resources.update import update_resources, update_sandbox_resources
from kubelet_trio.containers.sandbox import dotted_sysctl, sandbox_config
from kubelet_trio.containers.security import apparmor_profile
from kubelet_trio.containers.termination import (
    cut_message,
    make_termination_log,
    message_limit,
    read_termination_message,
)

__all__ = [
    "CONTAINER_NAME",
    "MAX_ENV_FILE",
    "OWN_DIRECTORY",
    "OWN_LOG",
    "POD_NAME",
    "POD_NAMESPACE",
    "POD_UID",
    "RESIZABLE",
    "TERMINATION_MESSAGE_PATH",
    "ContainerConfigError",
    "ContainerInputs",
    "EnvFileValues",
    "Environment",
    "LogFile",
    "LogOptions",
    "LogRenderer",
    "LogWatch",
    "NodeSettings",
    "PodConfigError",
    "PodFacts",
    "PodIdentity",
    "SandboxConfigError",
    "amounts",
    "apparmor_profile",
    "as_found",
    "container_amounts",
    "container_config",
    "container_env",
    "container_hash",
    "container_info",
    "container_log_path",
    "container_record",
    "container_state",
    "cut_message",
    "declares_limit",
    "differs",
    "dotted_sysctl",
    "effective_resources",
    "expand_from",
    "field_value",
    "follow_log",
    "has_hosts",
    "hosts_content",
    "hosts_mount",
    "hugepage_sizes",
    "increases_requests",
    "inotify_watch",
    "is_selinux_on",
    "link_log",
    "log_link",
    "make_directories",
    "make_log_directory",
    "make_termination_log",
    "masked_paths",
    "may_swap",
    "memory_capacity",
    "message_limit",
    "mounts_own_hosts",
    "next_restart_count",
    "node_cgroup_limits",
    "open_log_directory",
    "overhead_resources",
    "owned_by",
    "parse_env_file",
    "pod_cgroup_limits",
    "pod_dns",
    "pod_identity",
    "pod_labels_of",
    "pod_level",
    "pod_limits",
    "pod_log_directory",
    "pod_memory_limit",
    "pod_qos",
    "pod_requests",
    "poll_watch",
    "protected_memory",
    "qos_cgroup_limits",
    "read_resolv_conf",
    "read_termination_message",
    "remove_links",
    "remove_pod_logs",
    "resizable_amounts",
    "resolv_conf_problem",
    "resource_value",
    "same_resources",
    "sandbox_config",
    "sandbox_record",
    "service_variables",
    "sub_path",
    "total_quantities",
    "unlink_logs",
    "unreserved_memory",
    "update_resources",
    "update_sandbox_resources",
    "with_allocated",
    "with_larger",
    "with_resources",
    "without_quota",
    "write_hosts",
]
