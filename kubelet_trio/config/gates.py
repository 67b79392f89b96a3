"""Feature gates of the kubelet at Kubernetes 1.36, and which of them this agent implements.

An unknown gate is an error, as upstream; gates of other components (`OTHERS`) have no effect. A
gate that is on upstream is on here only if a module implements it (`EVIDENCE`). All others are off.
Gates of `EITHER` may be set to either value, all others only to their value here.

Source: pkg/features/kube_features.go; k8s.io/{apiserver,apiextensions-apiserver}/pkg/features,
client-go/features, component-base/{logs/api/v1,metrics/features,zpages/features} and
controller-manager/pkg/features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

# On upstream and here: the gate and the module that implements it.
_BUILT = """
CPUManagerPolicyBetaOptions             managers.cpus
CPUManagerPolicyOptions                 managers.cpus
CSIServiceAccountTokenSecrets           volumes.csi.filesystem
ContainerCheckpoint                     server.routes.commands
ContainerRestartRules                   pods.plan.restarts
ContextualLogging                       supervision.child
CustomCPUCFSQuotaPeriod                 containers.resources.container
DRAAdminAccess                          managers.claims
DRAExtendedResource                     managers.claims.usage
DRAPrioritizedList                      managers.claims.usage
DisableCPUQuotaWithExclusiveCPUs        managers.node
DisableNodeKubeProxyVersion             node.machine
DynamicResourceAllocation               managers.claims
EnvFiles                                containers.env.files
ExecProbeTimeout                        probes.exec
ExtendWebSocketsToKubelet               streaming.websocket
GracefulNodeShutdown                    shutdown.manager
GracefulNodeShutdownBasedOnPodPriority  shutdown.plan
HostnameOverride                        containers.hosts
ImageMaximumGCAge                       gc.images
ImageVolume                             pods.images.puller
InPlacePodLevelResourcesVerticalScaling pods.status.resources
InPlacePodVerticalScaling               pods.admission.resize
InPlacePodVerticalScalingInitContainers pods.plan.resize
KubeletCgroupDriverFromCRI              cri.health
KubeletCrashLoopBackOffMax              pods.plan.backoff
KubeletEnsureSecretPulledImages         credentials.image_access
KubeletFineGrainedAuthz                 server.access.authorization
KubeletPSI                              stats.cgroup_parse
KubeletPodResourcesDynamicResources     managers.podresources
KubeletPodResourcesGet                  managers.podresources
KubeletPodResourcesListUseActivePods    managers.podresources
KubeletSeparateDiskGC                   pressure.signals
KubeletServiceAccountTokenForCredentialProviders credentials.accounts
KubeletTracing                          tracing
LoggingBetaOptions                      cli.logging
MutableCSINodeAllocatableCount          node.csi_limits
NodeDeclaredFeatures                    pods.admission.declared_features
NodeLogQuery                            server.logs.node_query
NodeSwap                                containers.resources.container
PLEGOnDemandRelist                      pleg.relist
PodLevelResources                       containers.resources.cgroups
PodLifecycleSleepAction                 pods.steps.hooks
PodLifecycleSleepActionAllowZero        pods.steps.hooks
PodObservedGenerationTracking           pods.status.pod_status
PodReadyToStartContainersCondition      pods.status.conditions
PortForwardWebsockets                   streaming.forward
PreventStaticPodAPIReferences           sources.manifest.support
ProcMountType                           containers.security
RecoverVolumeExpansionFailure           volumes.expansion
RecursiveReadOnlyMounts                 volumes.container_mounts
RelaxedDNSSearchValidation              sources.validation.pod
RelaxedEnvironmentVariableValidation    sources.validation.env
ReloadKubeletClientCAFile               server.tls.serving
ReloadKubeletServerCertificateFile      server.tls.serving
ResourceHealthStatus                    managers.devices
ResourceHealthStatusMessage             managers.devices
RestartAllContainersOnContainerExits    pods.plan.restarts
RotateKubeletServerCertificate          kube.rotation
SELinuxChangePolicy                     volumes.selinux
SELinuxMountReadWriteOncePod            volumes.labels
SidecarContainers                       pods.plan.init_containers
SupplementalGroupsPolicy                containers.security
SystemdWatchdog                         cli.notify
TopologyManagerPolicyBetaOptions        managers.affinity
TopologyManagerPolicyOptions            managers.affinity
UserNamespacesSupport                   pods.records.userns
"""

_OFF = """
ClusterTrustBundleProjection PodCertificateRequest LocalStorageCapacityIsolationFSQuotaMonitoring
SELinuxMount CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ContainerStopSignals
DRANodeAllocatableResources EventedPLEG ImageVolumeWithDigest
InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
KubeletInUserNamespace LoggingAlphaOptions MemoryQoS PodAndContainerStatsFromCRI
PodLevelResourceManagers
PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay
RuntimeClassInImageCriApi TaintTolerationComparisonOperators TopologyManagerPolicyAlphaOptions
UserNamespacesHostNetworkSupport VolumeLimitScaling
ChangeContainerStatusOnKubeletRestart AllowDNSOnlyNodeCSR
AllowInsecureKubeletCertificateSigningRequests AllowOverwriteTerminationGracePeriodSeconds
KubeletRegistrationGetOnExistsOnly GitRepoVolumeDriver AllAlpha AllBeta
"""

# Gate to the module that implements it, below `kubelet_trio`.
EVIDENCE: Mapping[str, str] = {
    line.split()[0]: line.split()[1] for line in _BUILT.strip().splitlines()
}
# The value of each gate here.
GATES: Mapping[str, bool] = dict.fromkeys(EVIDENCE, True) | dict.fromkeys(_OFF.split(), False)

# Stages of gates upstream; of the others, those that are off are in alpha, and those on in beta.
_STABLE = """
CPUManagerPolicyOptions CSIServiceAccountTokenSecrets CustomCPUCFSQuotaPeriod DRAAdminAccess
DRAPrioritizedList DynamicResourceAllocation ExecProbeTimeout
ImageMaximumGCAge ImageVolume InPlacePodVerticalScaling KubeletCgroupDriverFromCRI
KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources KubeletPodResourcesGet
KubeletTracing MutableCSINodeAllocatableCount NodeLogQuery NodeSwap PodLifecycleSleepAction
PodLifecycleSleepActionAllowZero
PodObservedGenerationTracking ProcMountType RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation SELinuxChangePolicy
SELinuxMountReadWriteOncePod SidecarContainers SupplementalGroupsPolicy SystemdWatchdog
TopologyManagerPolicyOptions UserNamespacesSupport
"""
_BETA_OFF = """
ClusterTrustBundleProjection PodCertificateRequest LocalStorageCapacityIsolationFSQuotaMonitoring
SELinuxMount AllBeta
"""
_DEPRECATED = """
DisableCPUQuotaWithExclusiveCPUs DisableNodeKubeProxyVersion
KubeletPodResourcesListUseActivePods AllowDNSOnlyNodeCSR
AllowInsecureKubeletCertificateSigningRequests AllowOverwriteTerminationGracePeriodSeconds
KubeletRegistrationGetOnExistsOnly GitRepoVolumeDriver ChangeContainerStatusOnKubeletRestart
"""

# Of the API server, the scheduler, the controllers, kube-proxy, the libraries and Windows. The Go
# kubelet knows them too, and clusters give all components the same ones, as kind does.
_OTHERS = """
APIResponseCompression APIServerIdentity APIServerTracing APIServingWithRoutine
AggregatedDiscoveryRemoveBetaType AllowParsingUserUIDFromCertAuth AllowServiceExternalIPs
AllowUnsafeMalformedObjectDeletion
AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AtomicFIFO AuthorizeNodeWithSelectors
AuthorizePodWebsocketUpgradeCreatePermission AuthorizeWithSelectors BtreeWatchCache
CBORServingAndStorage CRDObservedGenerationTracking CRDValidationRatcheting
ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowCBOR ClientsAllowTLSCacheGC
ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook
ClusterTrustBundle ComponentFlagz ComponentStatusz ConcurrentWatchObjectDecode
ConsistentListFromCache ConstrainedImpersonation ControllerManagerReleaseLeaderElectionLockOnExit
CoordinatedLeaderElection CrossNamespaceVolumeDataSource CustomResourceFieldSelectors
DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaintRules DRADeviceTaints
DRAListTypeAttributes DRAPartitionableDevices DRAResourceClaimDeviceStatus
DRAResourceClaimGranularStatusAuthorization DRAResourcePoolStatus DRASchedulerFilterTimeout
DRAWorkloadResourceClaims DeclarativeValidation DeclarativeValidationBeta
DeclarativeValidationTakeover DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency
DisableAllocatorDualWrite ExternalServiceAccountTokenSigner GangScheduling GenericWorkload
HPAConfigurableTolerance HPAScaleToZero HonorPVReclaimPolicy InOrderInformers
InOrderInformersBatchProcess InPlacePodVerticalScalingAllocatedStatus InformerResourceVersion
JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy JobSuccessPolicy KMSv1
ListFromCacheSnapshot LogarithmicScaleDown LoggingStableOptions ManifestBasedAdmissionControlConfig
MatchLabelKeysInPodAffinity MatchLabelKeysInPodTopologySpread
MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MultiCIDRServiceAllocator
MutablePVNodeAffinity MutablePodResourcesForSuspendedJobs
MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy NFTablesProxyMode
NativeHistograms NodeInclusionPolicyInPodTopologySpread NominatedNodeNameForExpectation OpenAPIEnums
OpportunisticBatching OrderedNamespaceDeletion PersistentVolumeClaimUnusedSinceTime PodDeletionCost
PodSchedulingReadiness PodTopologyLabelsAdmission PreferSameTrafficDistribution
RelaxedServiceNameValidation RemoteRequestHeaderUID ResilientWatchCacheInitialization
RetryGenerateName SchedulerAsyncAPICalls SchedulerAsyncPreemption SchedulerPopFromBackoffQ
SchedulerQueueingHints SeparateCacheWatchRPC SeparateTaintEvictionController
ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo
ServiceCIDRStatusFieldWiping ShardedListAndWatch
SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet StaleControllerConsistencyJob
StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
StatefulSetSemanticRevisionComparison StorageCapacityScoring StorageNamespaceIndex StorageVersionAPI
StorageVersionHash StorageVersionMigrator StreamingCollectionEncodingToJSON
StreamingCollectionEncodingToProtobuf StrictIPCIDRValidation StructuredAuthenticationConfiguration
StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
TokenRequestServiceAccountUIDValidation TopologyAwareWorkloadScheduling
TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation
UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO VolumeAttributesClass
WatchCacheInitializationPostStartHook WatchList WatchListClient WinDSR WinOverlay
WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork WorkloadAwarePreemption
WorkloadWithJob
"""
OTHERS = frozenset(_OTHERS.split())

# These change nothing: for the first two the agent uses whatever the runtime offers; all options of
# the topology manager are stable; what the next two allow is up to the API server and the drivers.
WITHOUT_EFFECT = frozenset(
    {
        "EventedPLEG", "KubeletCgroupDriverFromCRI",
        "TopologyManagerPolicyAlphaOptions", "TopologyManagerPolicyBetaOptions",
        "DRAAdminAccess", "DRAPrioritizedList",
    }
)  # fmt: skip
EITHER = WITHOUT_EFFECT | {
    "CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions", "CRIListStreaming",
    "CSIVolumeHealth", "ClusterTrustBundleProjection", "ContainerCheckpoint",
    "ContainerStopSignals", "CustomCPUCFSQuotaPeriod", "DRAExtendedResource",
    "DisableCPUQuotaWithExclusiveCPUs", "DynamicResourceAllocation", "ExtendWebSocketsToKubelet",
    "GracefulNodeShutdown", "GracefulNodeShutdownBasedOnPodPriority", "ImageVolumeWithDigest",
    "InPlacePodLevelResourcesVerticalScaling",
    "KubeletCrashLoopBackOffMax", "KubeletEnsureSecretPulledImages", "KubeletInUserNamespace",
    "KubeletPodResourcesDynamicResources", "KubeletPodResourcesListUseActivePods",
    "KubeletRegistrationGetOnExistsOnly", "LoggingAlphaOptions", "MemoryQoS",
    "PodAndContainerStatsFromCRI", "PodCertificateRequest", "PodLevelResources",
    "PodLogsQuerySplitStreams", "PodsAPI", "QOSReserved", "ReduceDefaultCrashLoopBackOffDecay",
    "ResourceHealthStatus", "ResourceHealthStatusMessage", "RotateKubeletServerCertificate",
    "SELinuxMount",
}  # fmt: skip


def gate_stage(name: str) -> str:
    """Return a gate's stage, as upstream's metrics spell it: "" if it is stable."""
    if name in _STABLE.split():
        return ""
    if name in _DEPRECATED.split():
        return "DEPRECATED"
    is_beta = name in EVIDENCE or name in _BETA_OFF.split()
    return "BETA" if is_beta else "ALPHA"


def gate_values(gates: Mapping[str, bool]) -> Iterator[tuple[str, str, bool]]:
    """Yield name, stage and value of each gate, given those of the configuration."""
    for name, value in sorted(GATES.items()):
        yield name, gate_stage(name), gates.get(name, value)


def gate_problems(gates: Mapping[str, bool]) -> list[str]:
    """Return the problems of the given gates: unknown ones, and those not built yet."""
    problems = []
    for name, value in gates.items():
        if name in OTHERS:
            continue
        if name not in GATES:
            problems.append(f"invalid configuration: unrecognized feature gate: {name}")
        elif value != GATES[name] and name not in EITHER:
            why = f"it is {'on' if GATES[name] else 'off'} here"
            problems.append(f"not supported yet: feature gate {name}={str(value).lower()} ({why})")
    return problems
