"""Builds what the pod workers share: objects, images, volumes, cgroups, records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kubelet_trio.agent.claims import NodeClaims
from kubelet_trio.agent.parts import Reports, RuntimeParts, Setup, Supplies
from kubelet_trio.credentials import ImageAccess
from kubelet_trio.model import PodUid, Purpose
from kubelet_trio.objects import LocalObjects, NoTokens, ObjectStore
from kubelet_trio.pods import (
    BackOffTable,
    ImagePuller,
    MeteredTree,
    NoClaims,
    NodeCgroups,
    NoManagers,
    NoNotes,
    NoServices,
    PlainCgroups,
    PodManagers,
    PodNames,
    PodRecord,
    PodRecords,
    PodServices,
    PullRate,
    Remains,
    UserNamespaceManager,
)
from kubelet_trio.volumes import (
    CsiServices,
    NoClaimStatus,
    NodeFacts,
    PluginContext,
    VolumeGrowth,
    VolumeManager,
    host_kinds,
)

if TYPE_CHECKING:
    from kubelet_trio.agent.cluster import Cluster
    from kubelet_trio.managers import Claim, ClaimKey, LoadedManagers, ResourceManagers
    from kubelet_trio.volumes import VolumeLabels


def make_supplies(
    setup: Setup,
    runtime: RuntimeParts,
    reports: Reports,
    started_at: float,
    records: Mapping[PodUid, PodRecord],
    loaded: LoadedManagers | None,
    left: Mapping[ClaimKey, Claim],
) -> Supplies:
    """Build what the pod workers share; `records`, `loaded`, `left` are of an earlier agent."""
    settings, seams, cluster = setup.settings, setup.seams, setup.cluster
    csi = _make_csi(setup)
    documents = LocalObjects(setup.links.changes.objects_changed)
    objects: ObjectStore = cluster.objects(documents) if cluster is not None else documents
    if setup.taps is not None:
        objects = setup.taps.objects(objects)
    access = _make_image_access(setup, runtime)
    settled = frozenset(u for u, r in records.items() if r.allocates and r.resize is None)
    managers = _make_managers(setup, runtime, loaded)
    pod_managers: PodManagers = managers or NoManagers()
    claims = _make_claims(setup, left) if settings.managers.claims else None
    cgroups = _make_cgroups(setup, runtime, reports, settled, pod_managers)
    pods_dir, disk = settings.node.root_dir / "pods", seams.offload_for(Purpose.RECORDS)
    services = PodServices(
        runtime=runtime.runtime,
        runtime_state=runtime.health.state,
        observer=runtime.pleg,
        images=_make_images(setup, runtime, reports, objects, access),
        volumes=_make_volumes(setup, runtime, reports, objects, csi),
        objects=objects,
        cgroups=cgroups,
        records=PodRecords(pods_dir, disk),
        users=UserNamespaceManager(
            pods_dir, disk, per_pod=settings.ids_per_pod, max_pods=settings.admission.max_pods
        ),
        statuses=reports.statuses,
        events=reports.events,
        clock=seams.clock,
        offload=seams.offload_for(Purpose.PODS),
        names=PodNames(),
        # `listing`: after a failed removal only a new list shows what the runtime still has.
        remains=Remains(runtime.runtime, partial(runtime.pleg.refresh, listing=True)),
        crash_back_off=BackOffTable(settings.crash_back_off),
        node=runtime.node,
        started_at=started_at,
        exec_orphans=seams.exec_orphans,
        script=seams.script,
        service_env=cluster.service_variables if cluster is not None else NoServices(),
        sync_period=settings.sync_period,
        dead_kept=settings.container_gc.kept(),
        meter=seams.meter,
        managers=pod_managers,
        claims=claims or NoClaims(),
        # With `--offline-pods` there may be no connection for long.
        replaces_failed=cluster is None or cluster.server.keeper is None,
        notes=setup.taps.inputs if setup.taps is not None else NoNotes(),
    )
    return Supplies(documents, objects, access, cgroups, services, csi, managers, claims)


def _make_managers(
    setup: Setup, runtime: RuntimeParts, loaded: LoadedManagers | None
) -> ResourceManagers | None:
    if loaded is None:
        return None
    from kubelet_trio.managers import CheckpointKeeper, ResourceManagers

    seams = setup.seams
    disk, taps = seams.offload_for(Purpose.RECORDS), setup.taps
    on_put = taps.checkpoint if taps is not None else lambda _file, _encode: None
    keeper = CheckpointKeeper(setup.settings.node.root_dir, disk, on_put)
    if loaded.devices is None:
        return ResourceManagers(loaded, keeper, seams.meter)
    from kubelet_trio.agent.device_plugins import make_device_managers

    return make_device_managers(setup, runtime, loaded, keeper)


def _make_claims(setup: Setup, left: Mapping[ClaimKey, Claim]) -> NodeClaims:
    changes = setup.links.changes
    return NodeClaims(
        setup.settings,
        setup.seams,
        setup.cluster,
        changes.wake,
        changes.objects_changed,
        left,
        setup.taps,
    )


def _make_csi(setup: Setup) -> CsiServices:
    seams, node, cluster = setup.seams, setup.settings.node, setup.cluster
    return CsiServices(
        node.root_dir,
        node.node_name,
        seams.mounter,
        seams.offload_for(Purpose.VOLUMES),
        tokens=cluster.tokens if cluster is not None else NoTokens(),
        attachments=cluster.volumes.attachments if cluster is not None else None,
        in_use=cluster.volumes.in_use if cluster is not None else None,
        meter=seams.meter,
        install=cluster.volumes.csi_node.install if cluster is not None else None,
        devices=seams.devices,
        notes=setup.taps.volumes if setup.taps is not None else None,
    )


def _make_image_access(setup: Setup, runtime: RuntimeParts) -> ImageAccess | None:
    """Return the check of which pod may use which image; None: every pod may use every image."""
    settings, seams = setup.settings, setup.seams
    if settings.pull_verification is None:
        return None
    return ImageAccess(
        settings.node.root_dir,
        runtime.runtime,
        seams.offload_for(Purpose.PULLS),
        seams.clock,
        settings.pull_verification,
        seams.meter,
    )


def _make_images(
    setup: Setup,
    runtime: RuntimeParts,
    reports: Reports,
    objects: ObjectStore,
    access: ImageAccess | None,
) -> ImagePuller:
    settings, seams = setup.settings, setup.seams
    accounts = setup.cluster.accounts if setup.cluster is not None else None
    return ImagePuller(
        runtime.runtime,
        reports.events,
        seams.clock,
        parallel_pulls=settings.parallel_pulls,
        rate=PullRate(settings.pull_qps, settings.pull_burst),
        keyring=seams.keyring(accounts) if seams.keyring is not None else None,
        objects=objects,
        access=access,
        meter=seams.meter,
        times=reports.starts.pulls,
    )


def _make_volumes(
    setup: Setup,
    runtime: RuntimeParts,
    reports: Reports,
    objects: ObjectStore,
    csi: CsiServices,
) -> VolumeManager:
    seams, node, state = setup.seams, setup.settings.node, runtime.health.state
    offload = seams.offload_for(Purpose.VOLUMES)
    cluster = setup.cluster
    host = PluginContext(
        *(node.root_dir, seams.mounter, offload),
        devices=seams.devices,
        events=reports.events,
        controller=cluster.volumes.controller if cluster is not None else None,
        node_name=node.node_name,
        flex_dir=node.volume_plugin_dir,
    )
    return VolumeManager(
        node.root_dir,
        seams.mounter,
        offload,
        objects=objects,
        issuers=cluster.make_issuers(reports.events) if cluster is not None else None,
        growth=VolumeGrowth(
            reports.events,
            seams.clock.time,
            cluster.volumes.claims if cluster is not None else NoClaimStatus(),
        ),
        async_kinds=lambda walks, measured: [
            csi.kind(walks, measured),
            *host_kinds(replace(host, walks=walks)),
        ],
        clock=seams.clock,
        node=NodeFacts(
            allocatable=node.allocatable,
            memory_allocatable=seams.memory_allocatable,
            tmpfs_noswap=seams.tmpfs_noswap,
            selinux=node.selinux,
            labels=lambda: _node_labels(cluster),
            recursive_read_only=lambda handler: handler in state.value.recursive_read_only,
            no_image_volumes=lambda: state.value.no_image_volumes,
        ),
        labels=_make_labels(setup),
        meter=seams.meter,
        events=reports.events,
    )


def _make_labels(setup: Setup) -> VolumeLabels | None:
    """Return what gives volumes their SELinux labels; None on a host without SELinux."""
    seams, node = setup.seams, setup.settings.node
    if not node.selinux:
        return None
    from kubelet_trio.volumes import VolumeLabels

    return VolumeLabels(
        seams.meter, seams.offload_for(Purpose.VOLUMES), any_mode=node.selinux_mount
    )


def _node_labels(cluster: Cluster | None) -> Mapping[str, str] | None:
    node = cluster.known_node() if cluster is not None else None
    if node is None or node.metadata is None:
        return None
    return node.metadata.labels or {}


def _make_cgroups(
    setup: Setup,
    runtime: RuntimeParts,
    reports: Reports,
    settled: frozenset[PodUid],
    managers: PodManagers,
) -> NodeCgroups | PlainCgroups:
    seams, state = setup.seams, runtime.health.state
    if seams.cgroup_tree is None:
        return PlainCgroups(seams.cgroups, runtime.node)
    make_tree, meter = seams.cgroup_tree, seams.meter
    return NodeCgroups(
        setup.settings.cgroups,
        lambda driver: MeteredTree(make_tree(driver), meter),
        runtime.node,
        reports.events,
        reports.statuses.pods,
        lambda: state.wait_value(lambda now: now.is_ready),
        settled,
        managers.has_no_quota,
        meter,
    )
