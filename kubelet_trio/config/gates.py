"""Feature gates of the kubelet at Kubernetes 1.36 and their defaults there.

An unknown gate is an error, as upstream. A known one may be set to what this agent does:
its default, or anything for the few listed in `EITHER`.

Source: pkg/features/kube_features.go.
"""

from __future__ import annotations

from collections.abc import Mapping

_ON = """
CPUCFSQuotaPeriod CPUManagerPolicyOptions DRAAdminAccess DRAPrioritizedList
DynamicResourceAllocation ExecProbeTimeout ImageMaximumGCAge ImageVolume
InPlacePodVerticalScaling KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI
KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletTracing
MutableCSINodeAllocatableCount NodeLogQuery NodeSwap PodLifecycleSleepAction
PodLifecycleSleepActionAllowZero PodObservedGenerationTracking ProcMountType
RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
SELinuxMountReadWriteOncePod SidecarContainers SupplementalGroupsPolicy SystemdWatchdog
TopologyManagerPolicyOptions UserNamespacesSupport
ContainerCheckpoint ContainerRestartRules CPUManagerPolicyBetaOptions DRAExtendedResource
EnvFiles ExtendWebSocketsToKubelet GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority
HostnameOverride InPlacePodLevelResourcesVerticalScaling
InPlacePodVerticalScalingInitContainers KubeletCrashLoopBackOffMax
KubeletEnsureSecretPulledImages KubeletSeparateDiskGC
KubeletServiceAccountTokenForCredentialProviders NodeDeclaredFeatures PLEGOnDemandRelist
PodLevelResources PodReadyToStartContainersCondition PortForwardWebsockets
PreventStaticPodAPIReferences ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile
ResourceHealthStatus RestartAllContainersOnContainerExits RotateKubeletServerCertificate
KubeletPodResourcesListUseActivePods DisableNodeKubeProxyVersion
DisableCPUQuotaWithExclusiveCPUs
"""
_OFF = """
ClusterTrustBundleProjection PodCertificateRequest LocalStorageCapacityIsolationFSQuotaMonitoring
SELinuxMount CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ContainerStopSignals
DRANodeAllocatableResources EventedPLEG ImageVolumeWithDigest
InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
KubeletInUserNamespace MemoryQoS PodAndContainerStatsFromCRI PodLevelResourceManagers
PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay
RuntimeClassInImageCriAPI TaintTolerationComparisonOperators TopologyManagerPolicyAlphaOptions
UserNamespacesHostNetworkSupport VolumeLimitScaling
ChangeContainerStatusOnKubeletRestart AllowDNSOnlyNodeCSR
AllowInsecureKubeletCertificateSigningRequests AllowOverwriteTerminationGracePeriodSeconds
KubeletRegistrationGetOnExistsOnly GitRepoVolumeDriver AllAlpha AllBeta
"""

GATES: Mapping[str, bool] = dict.fromkeys(_ON.split(), True) | dict.fromkeys(_OFF.split(), False)

# What the runtime offers is used whatever the first two say; the others are obeyed.
WITHOUT_EFFECT = frozenset({"EventedPLEG", "KubeletCgroupDriverFromCRI"})
EITHER = WITHOUT_EFFECT | {
    "KubeletRegistrationGetOnExistsOnly", "MemoryQoS", "PodLogsQuerySplitStreams", "QOSReserved",
}  # fmt: skip


def gate_problems(gates: Mapping[str, bool]) -> list[str]:
    """Say what is wrong with the gates that were set: one unknown, or one not built yet."""
    problems = []
    for name, value in gates.items():
        if name not in GATES:
            problems.append(f"invalid configuration: unrecognized feature gate: {name}")
        elif value != GATES[name] and name not in EITHER:
            state = "on" if GATES[name] else "off"
            problems.append(
                f"not supported yet: feature gate {name}={str(value).lower()} (it is {state} here)"
            )
    return problems
