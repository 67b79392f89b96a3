"""Validates a configuration: every rule on its own, so that all problems are reported at once.

Source: pkg/kubelet/apis/config/validation/validation.go (1.36) and ValidateKubeletFlags in
cmd/kubelet/app/options/options.go; without the rule for `runOnce`, which works here.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from kubelet_trio.config.allocatable import eviction_problems, reserved_problems
from kubelet_trio.config.flags import KubeletFlags
from kubelet_trio.config.managers import manager_problems
from kubelet_trio.config.table import BY_PATH
from kubelet_trio.config.types import DEFAULTS, KubeletConfiguration
from kubelet_trio.config.walk import leaves
from kubelet_trio.durations import Duration, format_duration
from kubelet_trio.model import is_ip, parse_quantity, to_units, url_scheme

_PREFIX = "invalid configuration: "

# TLS settings by Go's names: those that `server.tls` maps to OpenSSL. A test compares both,
# because the two rooms do not import each other.
TLS_VERSIONS = ("VersionTLS12", "VersionTLS13")
_SUITES = """
TLS_AES_128_GCM_SHA256 TLS_AES_256_GCM_SHA384 TLS_CHACHA20_POLY1305_SHA256
TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305 TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305 TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
TLS_RSA_WITH_AES_128_CBC_SHA TLS_RSA_WITH_AES_128_GCM_SHA256
TLS_RSA_WITH_AES_256_CBC_SHA TLS_RSA_WITH_AES_256_GCM_SHA384
"""

CIPHER_SUITES = frozenset(_SUITES.split())
_RANGES: tuple[tuple[str, int, int], ...] = (
    ("imageGCHighThresholdPercent", 0, 100),
    ("imageGCLowThresholdPercent", 0, 100),
    ("iptablesDropBit", 0, 31),
    ("iptablesMasqueradeBit", 0, 31),
    ("oomScoreAdj", -1000, 1000),
    ("port", 1, 65535),
    ("healthzPort", 0, 65535),
    ("readOnlyPort", 0, 65535),
)
# Bytes of the flight recorder. A smaller ring does not hold what a segment begins with.
_LEAST_RECORDING, _MOST_RECORDING = 1 << 20, 64 << 30
_NOT_NEGATIVE = (
    "eventBurst",
    "eventRecordQPS",
    "kubeAPIBurst",
    "kubeAPIQPS",
    "maxOpenFiles",
    "maxPods",
    "podsPerCore",
    "registryBurst",
    "registryPullQPS",
    "imageMinimumGCAge",
    "imageMaximumGCAge",
)
# In a file zero means the default, but a flag can set it, and a loop would then spin.
_POSITIVE = (
    "nodeLeaseDurationSeconds",
    "syncFrequency",
    "fileCheckFrequency",
    "httpCheckFrequency",
    "runtimeRequestTimeout",
    "cpuManagerReconcilePeriod",
)
_CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cgroupDriver", ("cgroupfs", "systemd")),
    ("cpuManagerPolicy", ("none", "static")),
    ("logging.format", ("text", "json")),
    ("authorization.mode", ("AlwaysAllow", "Webhook")),
    ("hairpinMode", ("none", "hairpin-veth", "promiscuous-bridge")),
    ("memoryReservationPolicy", ("None", "TieredReservation")),
    ("memorySwap.swapBehavior", ("", "LimitedSwap", "NoSwap")),
    ("topologyManagerScope", ("container", "pod")),
    (
        "topologyManagerPolicy",
        ("none", "best-effort", "restricted", "single-numa-node"),
    ),
    (
        "imagePullCredentialsVerificationPolicy",
        (
            "NeverVerify",
            "NeverVerifyPreloadedImages",
            "NeverVerifyAllowlistedImages",
            "AlwaysVerify",
        ),
    ),
    ("configMapAndSecretChangeDetectionStrategy", ("Get", "Cache", "Watch")),
)
# What has no effect without its gate, which is on by default.
_GATED: tuple[tuple[str, str], ...] = (
    ("cpuCFSQuotaPeriod", "CustomCPUCFSQuotaPeriod"),
    ("crashLoopBackOff.maxContainerRestartPeriod", "KubeletCrashLoopBackOffMax"),
    ("imagePullCredentialsVerificationPolicy", "KubeletEnsureSecretPulledImages"),
    ("preloadedImagesVerificationAllowlist", "KubeletEnsureSecretPulledImages"),
    ("serverTLSBootstrap", "RotateKubeletServerCertificate"),
)
_PREVIOUS_VERSION = "1.35"  # the minor version before the reference kubelet's
_ENFORCEMENTS = (
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LEAVES = dict(leaves(KubeletConfiguration))


def validate(config: KubeletConfiguration) -> list[str]:
    """Return the problems of a configuration, one line each."""
    found = [
        *_numbers(config),
        *_choices(config),
        *_taints(config),
        *_gated(config),
        *_images(config),
        *_logs(config),
        *_recorder(config),
        *_logging(config),
        *_durations(config),
        *_allocatable(config),
        *reserved_problems(config),
        *_endpoints(config),
        *eviction_problems(config),
        *_server(config),
        *manager_problems(config),
    ]
    return [_PREFIX + text for text in found] + list(_tracing(config))


def _numbers(config: KubeletConfiguration) -> Iterator[str]:
    for path, low, high in _RANGES:
        value = _LEAVES[path].get(config)
        if not low <= value <= high:
            yield f"{_name(path)} {value} must be between {low} and {high}, inclusive"
    for path in _NOT_NEGATIVE:
        value = _LEAVES[path].get(config)
        if value < 0:
            yield f"{_name(path)} {_text(value)} must not be negative"
    for path in _POSITIVE:
        value = _LEAVES[path].get(config)
        if value <= 0:
            yield f"{_name(path)} {_text(value)} must be greater than 0"
    if config.node_status_max_images < -1:
        yield f"{_name('nodeStatusMaxImages')} must be -1 or greater"
    if not 0 < config.memory_throttling_factor <= 1:
        yield "memoryThrottlingFactor must be greater than 0 and at most 1.0"
    # User IDs are 32 bits; ranges of pods are allocated in blocks of 65536 (KEP-127).
    ids = config.user_namespaces.ids_per_pod
    if not 0 < ids < 2**32 or ids % 65536:
        yield f"userNamespaces.idsPerPod {ids} must be a multiple of 65536 and below 2^32"
    if config.logging.verbosity < 0:
        yield f"{_name('logging.verbosity')} must not be negative"


def _choices(config: KubeletConfiguration) -> Iterator[str]:
    for path, choices in _CHOICES:
        value = _LEAVES[path].get(config)
        if value not in choices:
            wanted = ", ".join(f'"{choice}"' for choice in choices)
            yield f'{_name(path)} "{value}" must be one of: {wanted}'


def _taints(config: KubeletConfiguration) -> Iterator[str]:
    """Source: CheckTaintValidation in pkg/util/taints."""
    for taint in config.register_with_taints:
        what = f'{_name("registerWithTaints")}: taint "{taint.key}={taint.value}:{taint.effect}"'
        if not _is_label_key(taint.key):
            yield f"{what} has an invalid key"
        if taint.value and not _NAME.fullmatch(taint.value):
            yield f"{what} has an invalid value"
        if taint.effect not in _EFFECTS:
            yield f"{what}: the effect must be one of {', '.join(_EFFECTS)}"


def _gated(config: KubeletConfiguration) -> Iterator[str]:
    for path, gate in _GATED:
        leaf = _LEAVES[path]
        is_set = leaf.get(config) != leaf.get(DEFAULTS)
        if is_set and not config.feature_gates.get(gate, True):
            yield f"{_name(path)} requires feature gate {gate}"


def _images(config: KubeletConfiguration) -> Iterator[str]:
    low, high = config.image_gc_low_threshold_percent, config.image_gc_high_threshold_percent
    if low >= high:
        yield (
            f"{_name('imageGCLowThresholdPercent')} {low} must be less than "
            f"{_name('imageGCHighThresholdPercent')} {high}"
        )
    if 0 < config.image_maximum_gc_age <= config.image_minimum_gc_age:
        yield (
            f"imageMaximumGCAge {config.image_maximum_gc_age} must be greater than "
            f"imageMinimumGCAge {config.image_minimum_gc_age}"
        )
    pulls = config.max_parallel_image_pulls
    if pulls is not None and pulls < 1:
        yield f"maxParallelImagePulls {pulls} must be a positive number"
    if pulls is not None and pulls > 1 and config.serialize_image_pulls:
        yield (
            "maxParallelImagePulls cannot be larger than 1 unless "
            f"{_name('serializeImagePulls')} is set to false"
        )
    yield from _allowlist(config)


def _allowlist(config: KubeletConfiguration) -> Iterator[str]:
    patterns = config.preloaded_images_verification_allowlist
    if not patterns:
        return
    if config.image_pull_credentials_verification_policy != "NeverVerifyAllowlistedImages":
        yield (
            "preloadedImagesVerificationAllowlist cannot be set unless "
            'imagePullCredentialsVerificationPolicy is "NeverVerifyAllowlistedImages"'
        )
    from kubelet_trio.credentials import allowlist_problem  # deferred: rarely used

    for index, pattern in enumerate(patterns):
        problem = allowlist_problem(pattern)
        if problem:
            yield f"preloadedImagesVerificationAllowlist[{index}]: {problem}"


def _logs(config: KubeletConfiguration) -> Iterator[str]:
    path = config.pod_logs_dir
    if not path.startswith("/"):
        yield f'podLogsDir "{path}" must be an absolute path'
    elif str(PurePosixPath(path)) != path or ".." in PurePosixPath(path).parts:
        yield f'podLogsDir "{path}" must be normalized'
    if not path.isascii():
        yield f'podLogsDir "{path}" must contain ASCII characters only'
    try:
        parse_quantity(config.container_log_max_size)
    except ValueError as exc:
        yield f"{_name('containerLogMaxSize')} {exc}"
    if config.container_log_max_workers < 1:
        yield "containerLogMaxWorkers must be greater than or equal to 1"
    if config.container_log_monitor_interval < 3:
        yield "containerLogMonitorInterval must be greater than or equal to 3s"
    if config.container_log_max_files <= 1:
        yield f"{_name('containerLogMaxFiles')} must be greater than 1"


def _recorder(config: KubeletConfiguration) -> Iterator[str]:
    name, text = _name("flightRecorderSize"), config.flight_recorder_size
    try:
        size = to_units(parse_quantity(text))
    except ValueError as exc:
        yield f"{name} {exc}"
        return
    if size and not _LEAST_RECORDING <= size <= _MOST_RECORDING:
        yield f"{name} {text} must be 0, or at least 1Mi and at most 64Gi"


def _logging(config: KubeletConfiguration) -> Iterator[str]:
    """Source: validateVModuleConfiguration and the options in component-base/logs/api/v1."""
    logging, name = config.logging, _name("logging.vmodule")
    if logging.vmodule and logging.format != "text":
        yield f"{name} is only supported for the text log format"
    for index, item in enumerate(logging.vmodule):
        if not item.file_pattern:
            yield f"{name}[{index}]: the file pattern must not be empty"
        elif set(item.file_pattern) & {"=", ","}:
            yield f'{name}[{index}] "{item.file_pattern}" must not have an equal sign or a comma'
        if not 0 <= item.verbosity < 2**31:
            yield f"{name}[{index}]: verbosity {item.verbosity} must be between 0 and {2**31 - 1}"
    if not config.feature_gates.get("LoggingAlphaOptions", False):
        for form, options in (("text", logging.options.text), ("json", logging.options.json)):
            if options.split_stream:
                path = f"logging.options.{form}.splitStream"
                yield f"{_name(path)} needs the feature gate LoggingAlphaOptions"


def _tracing(config: KubeletConfiguration) -> Iterator[str]:
    """Source: ValidateTracingConfiguration in k8s.io/component-base/tracing/api/v1."""
    if config.tracing is None:
        return
    rate, endpoint = config.tracing.sampling_rate_per_million, config.tracing.endpoint
    path = "tracing.samplingRatePerMillion: Invalid value"
    if rate < 0:
        yield f"{path}: {rate}: sampling rate must be positive"
    if rate > 1_000_000:
        text = "sampling rate per million must be less than or equal to one million"
        yield f"{path}: {rate}: {text}"
    from kubelet_trio.tracing import EndpointError, check_endpoint  # loaded when it is configured

    try:
        check_endpoint(endpoint)
    except EndpointError as exc:
        yield f"tracing.endpoint: Invalid value: {json.dumps(exc.value)}: {exc.problem}"


def _durations(config: KubeletConfiguration) -> Iterator[str]:
    # The kernel refuses other periods (max_cfs_quota_period in kernel/sched/core.c).
    if not 0.001 <= config.cpu_cfs_quota_period <= 1:
        yield (
            f"{_name('cpuCFSQuotaPeriod')} {config.cpu_cfs_quota_period} "
            "must be between 1ms and 1sec, inclusive"
        )
    # KEP-4603: a node may shorten the back-off of crashing containers, never prolong it.
    longest = config.crash_loop_back_off.max_container_restart_period
    if not 1 <= longest <= 300:
        yield (
            f"crashLoopBackOff.maxContainerRestartPeriod (got: {longest}) "
            "must be set between 1s and 300s"
        )
    yield from _shutdown(config)


def _shutdown(config: KubeletConfiguration) -> Iterator[str]:
    whole, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    by_priority = config.shutdown_grace_period_by_pod_priority
    if critical > whole:
        yield f"shutdownGracePeriodCriticalPods {critical} must be <= shutdownGracePeriod {whole}"
    for name, value in (
        ("shutdownGracePeriod", whole),
        ("shutdownGracePeriodCriticalPods", critical),
    ):
        if value < 0 or 0 < value < 1:
            yield f"{name} {value} must be either zero or otherwise >= 1 sec"
    if by_priority and (whole > 0 or critical > 0):
        yield "shutdownGracePeriodByPodPriority and shutdownGracePeriod exclude each other"
    gates = config.feature_gates
    if (whole > 0 or critical > 0) and not gates.get("GracefulNodeShutdown", True):
        yield (
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature "
            "gate GracefulNodeShutdown"
        )
    if by_priority and not gates.get("GracefulNodeShutdownBasedOnPodPriority", True):
        yield (
            "specifying shutdownGracePeriodByPodPriority requires feature gate "
            "GracefulNodeShutdownBasedOnPodPriority"
        )


def _allocatable(config: KubeletConfiguration) -> Iterator[str]:
    name, levels = _name("enforceNodeAllocatable"), config.enforce_node_allocatable
    for level in sorted({level for level in levels if levels.count(level) > 1}):
        yield f'duplicated enforcements "{level}" in {name}'
    for level in levels:
        if level not in _ENFORCEMENTS:
            yield f'option "{level}" specified for {name}. Valid options: {list(_ENFORCEMENTS)}'
        elif level.startswith("system-reserved") and not config.system_reserved_cgroup:
            yield f"{_name('systemReservedCgroup')} must be specified for {level} in {name}"
        elif level.startswith("kube-reserved") and not config.kube_reserved_cgroup:
            yield f"{_name('kubeReservedCgroup')} must be specified for {level} in {name}"
        elif level == "none" and len(levels) > 1:
            yield f'{name} may not contain additional enforcements when "none" is specified'
        elif level != "none" and not config.cgroups_per_qos:
            yield f'{_name("cgroupsPerQOS")} must be true when "{level}" is in {name}'
    for part in ("system-reserved", "kube-reserved"):
        if part in levels and f"{part}-compressible" in levels:
            yield f'both "{part}" and "{part}-compressible" cannot be in {name}'
    if config.reserved_system_cpus and (
        config.system_reserved_cgroup or config.kube_reserved_cgroup
    ):
        yield f"{_name('reservedSystemCPUs')} excludes systemReservedCgroup and kubeReservedCgroup"
    if config.system_cgroups and not config.cgroup_root:
        yield f"{_name('systemCgroups')} was specified and {_name('cgroupRoot')} was not"
    if config.system_cgroups and not config.system_cgroups.strip("/"):
        yield f"{_name('systemCgroups')} cannot be the root cgroup"


def _endpoints(config: KubeletConfiguration) -> Iterator[str]:
    if not config.container_runtime_endpoint:
        yield "the containerRuntimeEndpoint was not specified or empty"
    for path in ("containerRuntimeEndpoint", "imageServiceEndpoint"):
        value = str(_LEAVES[path].get(config))
        # A bare path means unix:///path, as in the Go kubelet (deprecated there).
        is_process = value == "process" and path == "containerRuntimeEndpoint"
        if value and not is_process and not value.removeprefix("unix://").startswith("/"):
            yield f'{_name(path)} "{value}" must be a unix socket: unix:///path'
    for path in ("healthzBindAddress", "address"):
        value = str(_LEAVES[path].get(config))
        if not is_ip(value):
            yield f'{_name(path)} "{value}" must be an IP address'
    for server in config.cluster_dns:
        if not is_ip(server):
            yield f'{_name("clusterDNS")} "{server}" must be an IP address'
    if config.static_pod_url and url_scheme(config.static_pod_url) not in ("http", "https"):
        yield f'{_name("staticPodURL")} "{config.static_pod_url}" must be an http or https URL'


def _server(config: KubeletConfiguration) -> Iterator[str]:
    if config.tls_min_version not in ("", *TLS_VERSIONS):
        yield (
            f'{_name("tlsMinVersion")} "{config.tls_min_version}" must be one of: '
            f"{', '.join(TLS_VERSIONS)}"
        )
    for suite in config.tls_cipher_suites:
        if suite not in CIPHER_SUITES:
            yield f'{_name("tlsCipherSuites")}: "{suite}" is not supported or does not exist'
    if bool(config.tls_cert_file) != bool(config.tls_private_key_file):
        yield f"{_name('tlsCertFile')} and {_name('tlsPrivateKeyFile')} need each other"
    if config.enable_system_log_query and not config.enable_system_log_handler:
        yield f"{_name('enableSystemLogHandler')} is required for enableSystemLogQuery"
    hidden = config.show_hidden_metrics_for_version
    if hidden not in ("", _PREVIOUS_VERSION):
        yield (
            f'showHiddenMetricsForVersion "{hidden}" must be left out or {_PREVIOUS_VERSION}: '
            "only the previous minor version is allowed"
        )
    if config.read_only_port and config.read_only_port == config.port:
        yield f"{_name('readOnlyPort')} and {_name('port')} must differ"


# Labels that a node may set on itself. Source: KubeletLabels in
# k8s.io/kubelet/pkg/apis/well_known_labels.go.
_LABELS = """
kubernetes.io/hostname topology.kubernetes.io/zone topology.kubernetes.io/region
failure-domain.beta.kubernetes.io/zone failure-domain.beta.kubernetes.io/region
node.kubernetes.io/instance-type beta.kubernetes.io/instance-type kubernetes.io/os
kubernetes.io/arch beta.kubernetes.io/os beta.kubernetes.io/arch
"""
_NODE_LABELS = frozenset(_LABELS.split())
_NODE_PREFIXES = ("kubelet.kubernetes.io", "node.kubernetes.io")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def validate_flags(flags: KubeletFlags) -> list[str]:
    """Return the problems of settings that exist only as flags."""
    found = [*_labels(flags.node_labels), *_node_flags(flags)]
    if flags.exit_on_lock_contention and not flags.lock_file:
        found.append("--exit-on-lock-contention needs a --lock-file to look at")
    return found


def _labels(labels: dict[str, str]) -> Iterator[str]:
    for key, value in labels.items():
        prefix = key.rpartition("/")[0]
        if not _is_label_key(key):
            yield f'invalid node labels: "{key}" is not a label key'
        elif value and not _NAME.fullmatch(value):
            yield f'invalid node labels: "{value}" is not a label value'
        elif _is_reserved(prefix) and key not in _NODE_LABELS:
            yield (
                f"unknown 'kubernetes.io' or 'k8s.io' label specified with --node-labels: {key} "
                f"(allowed prefixes: {', '.join(_NODE_PREFIXES)})"
            )


def _is_label_key(key: str) -> bool:
    """Whether a text is a qualified name: `name`, or `domain/name`."""
    prefix, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name) and (not slash or _SUBDOMAIN.fullmatch(prefix)))


def _is_reserved(prefix: str) -> bool:
    def under(domain: str) -> bool:
        return prefix == domain or prefix.endswith(f".{domain}")

    return (under("kubernetes.io") or under("k8s.io")) and not any(map(under, _NODE_PREFIXES))


def _node_flags(flags: KubeletFlags) -> Iterator[str]:
    if not flags.root_dir:
        yield "--root-dir must name a directory"
    # Trimmed and lower-cased, as by GetHostname in k8s.io/component-helpers/node/util.
    name = flags.hostname_override
    if name and not _SUBDOMAIN.fullmatch(name.strip().lower()):
        yield f'--hostname-override "{name}" is not a valid node name'
    addresses = [part.strip() for part in flags.node_ip.split(",")] if flags.node_ip else []
    if not all(map(is_ip, addresses)):
        yield f'--node-ip "{flags.node_ip}" must be an IP address, or two'
    elif len(addresses) > 2 or (
        len(addresses) == 2 and len({ipaddress.ip_address(a).version for a in addresses}) != 2
    ):
        yield f'--node-ip "{flags.node_ip}" must be one address of each IP family'
    if not 0 <= flags.ui_port <= 65535:
        yield f"--ui-port {flags.ui_port} must be between 0 and 65535, inclusive"
    if flags.ui_actions and not flags.ui_port:
        yield "--ui-actions needs the port of the page: --ui-port 10280, for example"
    if flags.crash_loop_backoff_base <= 0:
        yield "--crash-loop-backoff-base must be greater than 0"
    if flags.cloud_provider not in ("", "external"):
        yield f'unsupported cloud provider: "{flags.cloud_provider}" (empty or external)'


def _name(path: str) -> str:
    return BY_PATH[path].name


def _text(value: float) -> str:
    return format_duration(value) if isinstance(value, Duration) else str(value)
