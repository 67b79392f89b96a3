"""Feature gates of the kubelet at Kubernetes 1.36, their defaults there, and what is here.

An unknown gate is an error, as upstream. A gate that upstream has on is on here only where the
module is named that does what it stands for; what is not built is off here. A configuration that
turns such a gate on says no more than upstream's default: it is accepted with a note that names
the reason, and pods that ask for what is missing are refused by name. Turning it off is what it
is anyway, so that is accepted, even where upstream has locked it on. All others may be set to
what they are here, or to anything for the few in `EITHER`.

Source: pkg/features/kube_features.go, and staging/src/k8s.io/component-base/logs/api/v1.
"""

from __future__ import annotations

from collections.abc import Mapping

# On upstream and here: the gate and the module that does it.
_BUILT = """
CPUCFSQuotaPeriod                       containers.resources
ContainerCheckpoint                     server.commands
ContainerRestartRules                   pods.plan.restart
ContextualLogging                       supervision.child
DisableNodeKubeProxyVersion             node.machine
EnvFiles                                containers.env_file
ExecProbeTimeout                        probes.exec
ExtendWebSocketsToKubelet               streaming.websocket
GracefulNodeShutdown                    shutdown.manager
GracefulNodeShutdownBasedOnPodPriority  shutdown.plan
HostnameOverride                        containers.hostname
ImageMaximumGCAge                       gc.images
ImageVolume                             pods.images.images
KubeletCgroupDriverFromCRI              cri.health
KubeletCrashLoopBackOffMax              pods.plan.backoff
KubeletEnsureSecretPulledImages         credentials.image_access
KubeletFineGrainedAuthz                 server.access
KubeletPSI                              stats.cgroup_parse
KubeletSeparateDiskGC                   pressure.signals
KubeletServiceAccountTokenForCredentialProviders credentials.accounts
LoggingBetaOptions                      cli.logging
NodeDeclaredFeatures                    pods.admission.declared
NodeLogQuery                            server.node_log_query
NodeSwap                                containers.resources
PLEGOnDemandRelist                      pleg.relist
PodLevelResources                       containers.pod_cgroup
PodLifecycleSleepAction                 pods.steps.hooks
PodLifecycleSleepActionAllowZero        pods.steps.hooks
PodObservedGenerationTracking           pods.status.status
PodReadyToStartContainersCondition      pods.status.conditions
PortForwardWebsockets                   streaming.forward
PreventStaticPodAPIReferences           sources.manifest.support
ProcMountType                           containers.security
RecursiveReadOnlyMounts                 volumes.container_mounts
RelaxedDNSSearchValidation              sources.validation.pod
RelaxedEnvironmentVariableValidation    sources.validation.env
ReloadKubeletClientCAFile               server.tls
ReloadKubeletServerCertificateFile      server.tls
RestartAllContainersOnContainerExits    pods.plan.restart_all
RotateKubeletServerCertificate          kube.rotation
SidecarContainers                       pods.plan.plan_init
SupplementalGroupsPolicy                containers.security
SystemdWatchdog                         cli.notify
UserNamespacesSupport                   pods.records.userns
"""

_NO_MANAGERS = "no CPU, memory or topology manager is built"
_NO_DRA = "dynamic resources are not built"
_NO_RESIZE = "pods are not resized in place yet"
_NO_POD_RESOURCES = "there is no pod resources API"
_NO_CSI = "CSI volumes are not built"

# On upstream and off here: why.
NOT_BUILT: Mapping[str, str] = {
    "CPUManagerPolicyBetaOptions": _NO_MANAGERS,
    "CPUManagerPolicyOptions": _NO_MANAGERS,
    "DRAAdminAccess": _NO_DRA,
    "DRAExtendedResource": _NO_DRA,
    "DRAPrioritizedList": _NO_DRA,
    "DisableCPUQuotaWithExclusiveCPUs": _NO_MANAGERS,
    "DynamicResourceAllocation": _NO_DRA,
    "InPlacePodLevelResourcesVerticalScaling": _NO_RESIZE,
    "InPlacePodVerticalScaling": _NO_RESIZE,
    "InPlacePodVerticalScalingInitContainers": _NO_RESIZE,
    "KubeletPodResourcesDynamicResources": _NO_POD_RESOURCES,
    "KubeletPodResourcesGet": _NO_POD_RESOURCES,
    "KubeletPodResourcesListUseActivePods": _NO_POD_RESOURCES,
    "KubeletTracing": "traces are not exported",
    "MutableCSINodeAllocatableCount": _NO_CSI,
    "ResourceHealthStatus": "there are no device plugins",
    "SELinuxMountReadWriteOncePod": _NO_CSI,
    "TopologyManagerPolicyOptions": _NO_MANAGERS,
}

_OFF = """
ClusterTrustBundleProjection PodCertificateRequest LocalStorageCapacityIsolationFSQuotaMonitoring
SELinuxMount CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ContainerStopSignals
DRANodeAllocatableResources EventedPLEG ImageVolumeWithDigest
InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
KubeletInUserNamespace LoggingAlphaOptions MemoryQoS PodAndContainerStatsFromCRI
PodLevelResourceManagers
PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay
RuntimeClassInImageCriAPI TaintTolerationComparisonOperators TopologyManagerPolicyAlphaOptions
UserNamespacesHostNetworkSupport VolumeLimitScaling
ChangeContainerStatusOnKubeletRestart AllowDNSOnlyNodeCSR
AllowInsecureKubeletCertificateSigningRequests AllowOverwriteTerminationGracePeriodSeconds
KubeletRegistrationGetOnExistsOnly GitRepoVolumeDriver AllAlpha AllBeta
"""

# The modules behind the gates that are on, below `kubelet_trio`.
EVIDENCE: Mapping[str, str] = {
    line.split()[0]: line.split()[1] for line in _BUILT.strip().splitlines()
}
# What each gate is here.
GATES: Mapping[str, bool] = (
    dict.fromkeys(EVIDENCE, True)
    | dict.fromkeys(NOT_BUILT, False)
    | dict.fromkeys(_OFF.split(), False)
)

# What the runtime offers is used whatever the first two say. What the third lets go by (kernel
# settings, an OOM score and limits that may not be set) keeps no agent from starting. The
# others are obeyed.
WITHOUT_EFFECT = frozenset({"EventedPLEG", "KubeletCgroupDriverFromCRI", "KubeletInUserNamespace"})
EITHER = WITHOUT_EFFECT | {
    "KubeletRegistrationGetOnExistsOnly", "LoggingAlphaOptions", "MemoryQoS",
    "PodLogsQuerySplitStreams", "QOSReserved",
}  # fmt: skip


def gate_problems(gates: Mapping[str, bool]) -> list[str]:
    """Say what is wrong with the gates that were set: one unknown, or one not built yet."""
    problems = []
    for name, value in gates.items():
        if name not in GATES:
            problems.append(f"invalid configuration: unrecognized feature gate: {name}")
        elif value != GATES[name] and name not in EITHER and name not in NOT_BUILT:
            why = f"it is {'on' if GATES[name] else 'off'} here"
            problems.append(f"not supported yet: feature gate {name}={str(value).lower()} ({why})")
    return problems


def gate_notes(gates: Mapping[str, bool]) -> list[str]:
    """Name the gates that were turned on with nothing behind them, and why."""
    return [
        f"feature gate {name}=true has no effect: {NOT_BUILT[name]}"
        for name, value in gates.items()
        if value and name in NOT_BUILT
    ]
