"""The table of all fields and flags, and how this agent supports each.

One row per field of KubeletConfiguration (with its flag, if the Go kubelet has one), and one per
flag without a field. Parsing, refusals, `run --help` and docs/configuration.md all use these
rows.

Support is the effect of a value other than the default:

- YES: it is applied.
- API: it is applied on a node with an API server; without one it is MOOT.
- MOOT: it is accepted without effect, for the reason in `why`: its subject does not exist on a
  node without an API server (the Go kubelet standalone ignores it, too), or upstream no longer
  uses it.
- DEFAULT: it is refused by name, because the feature is not built yet.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Support(enum.Enum):
    YES = "supported"
    API = "with an API server"
    MOOT = "accepted, no effect"
    DEFAULT = "default only"


@dataclass(frozen=True, slots=True)
class Row:
    """One field, by its dotted JSON path, or (with an empty path) one flag of its own."""

    path: str
    flag: str
    support: Support
    help: str
    why: str = ""  # MOOT: why it has no effect; DEFAULT: what is not built yet

    @property
    def name(self) -> str:
        """The name in messages: the field with its flag, as in upstream's messages."""
        if self.path and self.flag:
            return f"{self.path} (--{self.flag})"
        return self.path or f"--{self.flag}"


YES, API, MOOT, DEFAULT = Support.YES, Support.API, Support.MOOT, Support.DEFAULT

_API = "only matters with an API server"
_NONE_UPSTREAM = "the Go kubelet does not act on it either"
_SERVER = "not part of the kubelet API here yet"
_NO_CADVISOR = "there is no cAdvisor here"


def row(
    path: str,
    flag: str,
    support: Support,
    text: str,
    why: str = "",
) -> Row:
    return Row(path, flag, support, text, why)


# ruff: noqa: E501  # a table is read by its columns
# fmt: off
FIELDS: tuple[Row, ...] = (
    # Pods and where they come from
    row("staticPodPath", "pod-manifest-path", YES, "directory of static pod manifests, or one such file"),
    row("staticPodURL", "manifest-url", YES, "URL to fetch further pod manifests from"),
    row("staticPodURLHeader", "manifest-url-header", YES, "headers for the manifest URL, `name:value,...`; may be repeated"),
    row("fileCheckFrequency", "file-check-frequency", YES, "how often manifest files are read again, in addition to inotify"),
    row("httpCheckFrequency", "http-check-frequency", YES, "how often the manifest URL is requested"),
    row("syncFrequency", "sync-frequency", YES, "longest time between two syncs of a pod"),
    row("podLogsDir", "", YES, "directory of the pods' log files"),
    row("maxPods", "max-pods", YES, "most pods on this node"),
    row("podsPerCore", "pods-per-core", YES, "most pods per CPU core; 0 is no limit"),
    row("podPidsLimit", "pod-max-pids", YES, "most processes in one pod; -1 is the node's limit"),
    row("podCIDR", "pod-cidr", YES, "CIDR of pod IPs, passed to the runtime; on a node of a cluster until the node's object has one"),
    row("runOnce", "runonce", YES, "start the pods of the manifests once, report, and exit"),
    row("crashLoopBackOff.maxContainerRestartPeriod", "", YES, "longest pause between restarts of a crashing container, 1s to 300s"),
    row("defaultPodSysctls", "", DEFAULT, "sysctls for every pod", "Kubernetes 1.37 brings it"),
    row("allowedUnsafeSysctls", "allowed-unsafe-sysctls", YES, "unsafe sysctls that pods may set: names, or beginnings of names and `*`"),
    row("seccompDefault", "seccomp-default", YES, "use the RuntimeDefault seccomp profile where a pod names none"),
    # The runtime and its images
    row("containerRuntimeEndpoint", "container-runtime-endpoint", YES, "CRI endpoint of the container runtime: a unix socket, or `process` for processes of this host; unset: the first socket at the usual places, else `process`"),
    row("imageServiceEndpoint", "image-service-endpoint", YES, "CRI endpoint of the image service; empty is the runtime's"),
    row("runtimeRequestTimeout", "runtime-request-timeout", YES, "deadline of runtime calls except the long ones (pull, exec, stop)"),
    row("serializeImagePulls", "serialize-image-pulls", YES, "pull one image at a time"),
    row("maxParallelImagePulls", "", YES, "most pulls at a time; 2 or more turns serializeImagePulls off"),
    row("registryPullQPS", "registry-qps", YES, "image pulls that may start per second; more fail with `pull QPS exceeded`; 0 is no limit"),
    row("registryBurst", "registry-burst", YES, "image pulls that may start at once, above registryPullQPS"),
    row("imagePullCredentialsVerificationPolicy", "", YES, "which images on the node a pod may use only with credentials that can pull them"),
    row("preloadedImagesVerificationAllowlist", "", YES, "repositories exempt from that under `NeverVerifyAllowlistedImages`; `/*` at the end for all below"),
    row("containerLogMaxSize", "container-log-max-size", YES, "size at which a container log is rotated; negative: never"),
    row("containerLogMaxFiles", "container-log-max-files", YES, "log files kept per container"),
    row("containerLogMaxWorkers", "", YES, "log rotations at a time"),
    row("containerLogMonitorInterval", "", YES, "how often log sizes are checked"),
    row("imageMinimumGCAge", "minimum-image-ttl-duration", YES, "age before an unused image may be removed"),
    row("imageMaximumGCAge", "", YES, "age at which an unused image is removed anyway; 0s is never"),
    row("imageGCHighThresholdPercent", "image-gc-high-threshold", YES, "disk use at which images are removed"),
    row("imageGCLowThresholdPercent", "image-gc-low-threshold", YES, "disk use down to which images are removed"),
    # Network and names
    row("clusterDomain", "cluster-domain", YES, "DNS domain that pods search in addition to the host's"),
    row("clusterDNS", "cluster-dns", YES, "DNS servers of pods with dnsPolicy ClusterFirst"),
    row("resolvConf", "resolv-conf", YES, "resolver file that pods' DNS settings start from, read for each sandbox; empty is none"),
    row("hairpinMode", "hairpin-mode", MOOT, "how pods reach themselves through a Service", _NONE_UPSTREAM + ": networks are the runtime's"),
    row("makeIPTablesUtilChains", "make-iptables-util-chains", YES, "keep the kubelet's chains in iptables and ip6tables; not with the process runtime"),
    row("iptablesMasqueradeBit", "iptables-masquerade-bit", MOOT, "bit of the masquerade mark", _NONE_UPSTREAM),
    row("iptablesDropBit", "iptables-drop-bit", MOOT, "bit of the drop mark", _NONE_UPSTREAM),
    # cgroups, CPU and memory
    row("cgroupDriver", "cgroup-driver", YES, "cgroupfs or systemd; the runtime's own setting wins"),
    row("cgroupRoot", "cgroup-root", YES, "cgroup that holds the pods' cgroups"),
    row("cgroupsPerQOS", "cgroups-per-qos", YES, "one cgroup a QoS class and pod"),
    row("cpuCFSQuota", "cpu-cfs-quota", YES, "enforce CPU limits as CFS quota"),
    row("cpuCFSQuotaPeriod", "cpu-cfs-quota-period", YES, "period of the CFS quota, 1ms to 1s"),
    row("failCgroupV1", "fail-cgroupv1", YES, "refuse to start on cgroup v1"),
    row("failSwapOn", "fail-swap-on", YES, "refuse to start where swap is on"),
    row("memorySwap.swapBehavior", "", YES, "swap for containers: NoSwap or LimitedSwap"),
    row("singleProcessOOMKill", "", YES, "kill one process, not the container, when memory runs out"),
    row("memoryThrottlingFactor", "", YES, "share of the limit at which memory is throttled; needs the MemoryQoS gate"),
    row("memoryReservationPolicy", "", YES, "None or TieredReservation: whether memory.min and memory.low are set; needs the MemoryQoS gate"),
    row("kubeletCgroups", "kubelet-cgroups", YES, "cgroup that the agent moves itself into; empty: it stays where it was started"),
    row("systemCgroups", "system-cgroups", YES, "cgroup that processes of the root cgroup are moved into, except init and kernel threads; needs cgroupRoot"),
    row("systemReserved", "system-reserved", YES, "resources kept for the system"),
    row("kubeReserved", "kube-reserved", YES, "resources kept for Kubernetes' own daemons"),
    row("systemReservedCgroup", "system-reserved-cgroup", YES, "cgroup on which systemReserved is enforced"),
    row("kubeReservedCgroup", "kube-reserved-cgroup", YES, "cgroup on which kubeReserved is enforced"),
    row("reservedSystemCPUs", "reserved-cpus", YES, "CPUs kept for the system"),
    row("enforceNodeAllocatable", "enforce-node-allocatable", YES, "where allocatable is enforced: none, pods, ..."),
    row("qosReserved", "qos-reserved", YES, "memory kept for better QoS classes, `memory=50%`; needs the QOSReserved gate"),
    row("cpuManagerPolicy", "cpu-manager-policy", YES, "none or static: whether containers of Guaranteed pods that request whole CPUs get them for themselves"),
    row("cpuManagerPolicyOptions", "cpu-manager-policy-options", YES, "options of the static policy, `option=true,...`"),
    row("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", YES, "how often the CPU sets of all containers are compared, in addition to after changes"),
    row("memoryManagerPolicy", "memory-manager-policy", YES, "None or Static: whether memory and huge pages of Guaranteed pods are kept on chosen NUMA nodes"),
    row("reservedMemory", "reserved-memory", YES, "memory kept for the system on each NUMA node, `0:memory=1Gi,hugepages-2Mi=64Mi;1:...`; must add up to systemReserved, kubeReserved and evictionHard; needs memoryManagerPolicy Static"),
    row("topologyManagerPolicy", "topology-manager-policy", YES, "none, best-effort, restricted or single-numa-node: whether CPUs, memory and devices must share NUMA nodes"),
    row("topologyManagerScope", "topology-manager-scope", YES, "container or pod: what is to share NUMA nodes"),
    row("topologyManagerPolicyOptions", "topology-manager-policy-options", YES, "options of the topology manager, `option=value,...`"),
    row("userNamespaces.idsPerPod", "", YES, "user and group IDs of a pod with hostUsers: false, a multiple of 65536"),
    # Health, logs and the process
    row("healthzPort", "healthz-port", YES, "port of /healthz, /livez and /readyz; 0 turns them off"),
    row("healthzBindAddress", "healthz-bind-address", YES, "address that health is served on"),
    row("oomScoreAdj", "oom-score-adj", YES, "the agent's own oom_score_adj"),
    row("maxOpenFiles", "max-open-files", YES, "the agent's own limit of open files"),
    row("logging.format", "logging-format", YES, "text or json; unset: text on a terminal, JSON elsewhere"),
    row("logging.verbosity", "v", YES, "how much is logged: 0 is info, 4 and above is debug"),
    row("logging.flushFrequency", "log-flush-frequency", MOOT, "longest time between log flushes", "every line is written at once"),
    row("logging.vmodule", "vmodule", YES, "verbosity per file: `pattern=N,...`, where a pattern is a file's name without `.py`, or matches it; 4 and above shows details; only with the text format"),
    row("logging.options.text.splitStream", "log-text-split-stream", YES, "errors to stderr, the rest to stdout; needs the LoggingAlphaOptions gate"),
    row("logging.options.text.infoBufferSize", "log-text-info-buffer-size", MOOT, "buffer of the split stream", "every line is written at once"),
    row("logging.options.json.splitStream", "log-json-split-stream", YES, "errors to stderr, the rest to stdout; needs the LoggingAlphaOptions gate"),
    row("logging.options.json.infoBufferSize", "log-json-info-buffer-size", MOOT, "buffer of the split stream", "every line is written at once"),
    row("tracing", "", YES, "send OpenTelemetry spans to `endpoint` (localhost:4317), of `samplingRatePerMillion` of a million traces that begin here (0: only where the caller samples); needs the extra `tracing`: see [tracing](tracing.md)"),
    row("flightRecorderSize", "flight-recorder-size", YES, "most disk space of the recording of what reached the agent and what it decided, at least 1Mi; 0: nothing is recorded; see docs/recorder.md (kubelet-trio only)"),
    row("featureGates", "feature-gates", YES, "feature gates, `Name=true,...`; see the gates below"),
    row("showHiddenMetricsForVersion", "", MOOT, "show metrics hidden since this version; the previous minor one is allowed", "no metric of this agent is hidden"),
    # The kubelet API server
    row("enableServer", "enable-server", YES, "serve the kubelet API; off also makes the server fields below moot. Port 10250 is opened only if a request could be authorized: with an API server, or with AlwaysAllow and a client CA or anonymous requests"),
    row("address", "address", YES, "address of the kubelet API"),
    row("port", "port", YES, "port of the kubelet API"),
    row("readOnlyPort", "read-only-port", YES, "port of the read-only API; 0 is none"),
    row("tlsCertFile", "tls-cert-file", YES, "serving certificate"),
    row("tlsPrivateKeyFile", "tls-private-key-file", YES, "key of the serving certificate"),
    row("tlsCipherSuites", "tls-cipher-suites", YES, "cipher suites to serve"),
    row("tlsCurvePreferences", "tls-curve-preferences", DEFAULT, "key exchanges to serve, as Go's CurveIDs", _SERVER),
    row("tlsMinVersion", "tls-min-version", YES, "lowest TLS version to serve"),
    row("authentication.x509.clientCAFile", "client-ca-file", YES, "CA that client certificates are checked against"),
    row("authentication.webhook.enabled", "authentication-token-webhook", YES, "check bearer tokens by TokenReview"),
    row("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", YES, "how long answers of TokenReview hold"),
    row("authentication.anonymous.enabled", "anonymous-auth", YES, "let requests in without an identity"),
    row("authorization.mode", "authorization-mode", YES, "AlwaysAllow or Webhook"),
    row("authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl", YES, "how long a yes holds"),
    row("authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl", YES, "how long a no holds"),
    row("enableDebuggingHandlers", "enable-debugging-handlers", YES, "serve logs, exec, attach and port-forward"),
    row("enableContentionProfiling", "contention-profiling", MOOT, "serve Go's block profile", "it is of Go's runtime, which this agent does not have"),
    row("enableProfilingHandler", "", YES, "serve /debug/pprof: command line, tasks, CPU and heap profiles"),
    row("enableDebugFlagsHandler", "", YES, "serve /debug/flags/v, which changes the verbosity of the running agent"),
    row("enableSystemLogHandler", "", YES, "serve the host's /var/log"),
    row("enableSystemLogQuery", "", YES, "serve queries of the journal and of services' logs below /logs/"),
    row("streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", YES, "longest time that an exec, attach or port-forward may pass without a byte; 0 is no limit"),
    # Only with an API server
    row("registerNode", "register-node", API, "register this node", _API),
    row("registerWithTaints", "register-with-taints", YES, "taints to register with, `key=value:effect,...`"),
    row("providerID", "provider-id", API, "the node's name in a machine database", _API),
    row("nodeStatusUpdateFrequency", "node-status-update-frequency", API, "how often node status is computed", _API),
    row("nodeStatusReportFrequency", "", API, "how often unchanged node status is reported", _API),
    row("nodeLeaseDurationSeconds", "", API, "duration of the node lease", _API),
    row("nodeStatusMaxImages", "node-status-max-images", API, "most images in node status; -1 is all", _API),
    row("kubeAPIQPS", "kube-api-qps", API, "requests per second to the API server", _API),
    row("kubeAPIBurst", "kube-api-burst", API, "burst above kubeAPIQPS", _API),
    row("contentType", "kube-api-content-type", MOOT, "content type towards the API server", "JSON is spoken"),
    row("eventRecordQPS", "event-qps", API, "events per second to the API server", _API),
    row("eventBurst", "event-burst", API, "burst above eventRecordQPS", _API),
    row("rotateCertificates", "rotate-certificates", API, "renew the client certificate", _API),
    row("serverTLSBootstrap", "rotate-server-certificates", API, "have the serving certificate signed through the API server", _API),
    row("configMapAndSecretChangeDetectionStrategy", "", API, "how changes of ConfigMaps and Secrets are seen", _API),
    row("enableControllerAttachDetach", "enable-controller-attach-detach", API, "leave attaching volumes to the controller", _API),
    row("offlinePods", "offline-pods", API, "keep the API server's last state on disk, and start pods from it after a reboot without a connection; see docs/cluster.md for the risk (kubelet-trio only)", _API),
    # Eviction and shutdown
    row("evictionHard", "eviction-hard", YES, "thresholds that evict at once, `signal<value,...`"),
    row("evictionSoft", "eviction-soft", YES, "thresholds that evict after a grace period"),
    row("evictionSoftGracePeriod", "eviction-soft-grace-period", YES, "grace periods of evictionSoft"),
    row("evictionPressureTransitionPeriod", "eviction-pressure-transition-period", YES, "how long pressure outlives its cause"),
    row("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", YES, "longest grace of an evicted pod, in seconds"),
    row("evictionMinimumReclaim", "eviction-minimum-reclaim", YES, "least to free per eviction"),
    row("mergeDefaultEvictionSettings", "", YES, "fill up evictionHard with the defaults"),
    row("kernelMemcgNotification", "kernel-memcg-notification", YES, "let the kernel notify about memory pressure"),
    row("shutdownGracePeriod", "", YES, "time for pods at node shutdown"),
    row("shutdownGracePeriodCriticalPods", "", YES, "the part of it for critical pods"),
    row("shutdownGracePeriodByPodPriority", "", YES, "shutdown time by priority"),
    # Volumes and the host
    row("volumePluginDir", "volume-plugin-dir", YES, "directory of FlexVolume drivers"),
    row("volumeStatsAggPeriod", "volume-stats-agg-period", YES, "how long a volume's measured usage is valid; negative: volumes are not measured"),
    row("localStorageCapacityIsolation", "local-storage-capacity-isolation", YES, "manage local storage as a resource: enforce its limits"),
    row("protectKernelDefaults", "protect-kernel-defaults", YES, "refuse to start if kernel settings differ from the kubelet's, instead of writing them"),
)

FLAGS: tuple[Row, ...] = (
    row("", "config", YES, "KubeletConfiguration file; flags win over it"),
    row("", "config-dir", YES, "directory of drop-ins (*.conf) merged over --config in lexical order"),
    row("", "root-dir", YES, "directory of the agent's own files (other users than root: `$XDG_STATE_HOME/kubelet-trio`)"),
    row("", "hostname-override", YES, "node name instead of the host's"),
    row("", "node-ip", YES, "IP of this node, or two for dual stack"),
    row("", "crash-loop-backoff-base", YES, "first pause between restarts of a crashing container (kubelet-trio only)"),
    row("", "crash-loop-backoff-exempt-clean-exits", YES, "restart a container that exited with 0 without a pause (kubelet-trio only)"),
    row("", "process-allow-root", YES, "let containers of the process runtime run as root (kubelet-trio only)"),
    row("", "remove-pods-on-exit", YES, "end and completely remove all pods at SIGINT and SIGTERM (kubelet-trio only)"),
    row("", "keep-kernel-settings", YES, "start with the kernel's settings as they are, and do not change them (kubelet-trio only)"),
    row("", "ui-port", YES, "serve the node page on this port of 127.0.0.1; 0: not (kubelet-trio only)"),
    row("", "ui-actions", YES, "let those who may open the control socket restart containers and run commands on the page of `--ui-port` (kubelet-trio only)"),
    row("", "image-gc-keep", YES, "images that are never removed, `pattern,...`; may be repeated (kubelet-trio only)"),
    row("", "kubeconfig", YES, "kubeconfig of the API server of a cluster to join; unset: no cluster"),
    row("", "bootstrap-kubeconfig", API, "kubeconfig to request a client certificate with, if `--kubeconfig` has no valid one", "without --kubeconfig no cluster is joined"),
    row("", "cert-dir", YES, "directory of the node's certificates, and of a generated serving certificate if none is configured (other users than root: below `--root-dir`)"),
    row("", "cloud-provider", API, "empty or external", _API),
    row("", "node-labels", YES, "labels to register with, `key=value,...`; pods select nodes by them"),
    row("", "lock-file", YES, "file to lock exclusively; the start waits while another process holds the lock"),
    row("", "exit-on-lock-contention", YES, "exit when another process opens or deletes the lock file; pods keep running"),
    row("", "runtime-cgroups", YES, "cgroup of the runtime, shown as `runtime` in /stats/summary"),
    row("", "image-credential-provider-config", YES, "file or directory of credential provider settings"),
    row("", "image-credential-provider-bin-dir", YES, "directory of credential provider programs"),
    row("", "pod-infra-container-image", YES, "sandbox image that is not removed, if the runtime neither reports nor pins it (removed upstream)"),
    row("", "housekeeping-interval", MOOT, "how often cAdvisor measures", _NO_CADVISOR),
    row("", "max-housekeeping-interval", MOOT, "longest time between two measurements of cAdvisor", _NO_CADVISOR),
    row("", "minimum-container-ttl-duration", YES, "age before a dead container is removed"),
    row("", "maximum-dead-containers-per-container", YES, "dead instances kept per container"),
    row("", "maximum-dead-containers", YES, "dead containers kept in all; negative is no limit"),
    row("", "register-schedulable", API, "register as schedulable", _API),
    row("", "experimental-allocatable-ignore-eviction", YES, "leave hard eviction thresholds out of allocatable"),
    row("", "keep-terminated-pod-volumes", DEFAULT, "keep volumes of ended pods mounted", "keeping volumes of ended pods"),
    # cAdvisor's, which the Go kubelet has by mistake (addCadvisorFlags, globalflags_linux.go)
    row("", "application-metrics-count-limit", MOOT, "most application metrics per container", _NO_CADVISOR),
    row("", "container-hints", MOOT, "file with hints about containers for cAdvisor", _NO_CADVISOR),
    row("", "containerd", MOOT, "containerd's socket for cAdvisor", _NO_CADVISOR),
    row("", "containerd-namespace", MOOT, "containerd's namespace for cAdvisor", _NO_CADVISOR),
    row("", "enable-load-reader", MOOT, "CPU load statistics of cAdvisor", _NO_CADVISOR),
    row("", "event-storage-age-limit", MOOT, "age of events that cAdvisor keeps", _NO_CADVISOR),
    row("", "event-storage-event-limit", MOOT, "number of events that cAdvisor keeps", _NO_CADVISOR),
    row("", "global-housekeeping-interval", MOOT, "how often cAdvisor lists all containers", _NO_CADVISOR),
    row("", "log-cadvisor-usage", MOOT, "log cAdvisor's own resource usage", _NO_CADVISOR),
    row("", "storage-driver-buffer-duration", MOOT, "how long cAdvisor buffers data for its database", _NO_CADVISOR),
    row("", "storage-driver-db", MOOT, "database of cAdvisor", _NO_CADVISOR),
    row("", "storage-driver-host", MOOT, "its host", _NO_CADVISOR),
    row("", "storage-driver-password", MOOT, "its password", _NO_CADVISOR),
    row("", "storage-driver-secure", MOOT, "whether it is reached by TLS", _NO_CADVISOR),
    row("", "storage-driver-table", MOOT, "its table", _NO_CADVISOR),
    row("", "storage-driver-user", MOOT, "its user", _NO_CADVISOR),
    row("", "boot-id-file", DEFAULT, "file with the boot ID", "the node's boot ID comes from the kernel"),
    row("", "machine-id-file", DEFAULT, "files with the machine ID", "the node's machine ID comes from the default ones"),
    row("", "experimental-mounter-path", DEFAULT, "mounter program (removed upstream)", "a mounter program; the kernel's mounts are made without one"),
)
# fmt: on

BY_PATH = {entry.path: entry for entry in FIELDS}
BY_FLAG = {entry.flag: entry for entry in (*FIELDS, *FLAGS) if entry.flag}
SERVER = _SERVER
