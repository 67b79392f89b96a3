"""Every family of the metrics pages is moved by something that happens on a node.

Each scenario lets it happen and compares the pages before and after. What other tests show is
listed with where; a family that nobody moves may not be declared.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import EphemeralContainer, Node, Pod, ResourceRequirements
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from kubelet_trio.agent import Agent, NodeApiSettings
from kubelet_trio.agent.metrics import AgentMetrics
from kubelet_trio.agent.node_api import NodeApi
from kubelet_trio.config.load import load_settings
from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.daemon import open_apis
from kubelet_trio.gc import ImagePolicy, LogRotationPolicy
from kubelet_trio.kube import KubeError, KubeUnavailableError
from kubelet_trio.managers import load_managers
from kubelet_trio.model import NANO, Meter, SystemClock, inline_offload, node_ref, pod_uid
from kubelet_trio.model import spec as spec_of
from kubelet_trio.server import Port, open_tcp
from kubelet_trio.shutdown import ShutdownPeriod
from kubelet_trio.stats import FAMILIES, Filesystem
from kubelet_trio.testing import Behaviour, FaultKind
from kubelet_trio.testing.objects import FakeContainer
from tests.agent.node import Node as Host
from tests.agent.node import from_api, guaranteed, make_pod, make_pods
from tests.agent.test_admission import sized
from tests.agent.test_cluster import World
from tests.agent.test_eviction import HARD, MI, Machine
from tests.agent.test_garbage import images_on
from tests.agent.test_hooks import hooked
from tests.agent.test_orphans import orphan
from tests.handlers.server import serving
from tests.managers.node.machines import static, two_nodes
from tests.pods.cgroups.test_node import FakeTree
from tests.shutdown.fake import FakeLogind
from tests.volumes.csi import world as csi

Totals = Mapping[str, float]
NOTHING: Totals = {}
VOLUMES = make_pods(
    """\
apiVersion: v1
kind: Pod
metadata: {name: full}
spec:
  hostUsers: false
  containers:
  - name: web
    image: web
    livenessProbe: {exec: {command: [check]}, periodSeconds: 1}
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: files, mountPath: /files}]
  volumes: [{name: scratch, emptyDir: {}}, {name: files, image: {reference: files}}]
"""
)[0]


async def totals(agent: Agent) -> dict[str, float]:
    """Return the sum of each family's samples on both of the agent's own pages."""
    pages = await agent.metrics.page() + await agent.metrics.probes_page()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(pages):
        name = family.name if family.name in FAMILIES else f"{family.name}_total"
        found[name] = sum(sample.value for sample in family.samples)
    return found


async def a_pod_of_the_cluster_starts(base: Path) -> tuple[Totals, Totals]:
    world = World(base)
    world.host.runtime.events = True
    world.host.runtime.node.write_logs = True
    world.host.runtime.node.behave = lambda _config: Behaviour(output="a line of the log")
    async with world.running(make_pod("static")) as agent:
        await world.wait(world.is_node_ready)
        world.bind()
        await world.wait(world.is_ready)
        await world.wait(lambda: world.is_ready("static-node"))
        await trio.sleep(60)
        return NOTHING, await totals(agent)


async def a_container_that_ends(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    async with node.running(make_pod(image="exit-3-after-5")) as agent:
        before = await totals(agent)
        await trio.sleep(8)
        return before, await totals(agent)


async def a_pod_with_volumes_and_users_of_its_own(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    node.runtime.handler_features[""] = v1.RuntimeHandlerFeatures(user_namespaces=True)
    node.runtime.faults.add(FaultKind.ERROR, "RunPodSandbox")
    unmounted = RuntimeCallError("CreateContainer", "ImageVolumeMountFailed: no such layer")
    node.runtime.faults.add(FaultKind.ERROR, "CreateContainer", error=unmounted)
    node.allocatable = {"cpu": 4 * NANO, "pods": 3 * NANO}
    tree = FakeTree()
    node.cgroup_tree = lambda _driver: tree
    debugger = EphemeralContainer(name="debug", image="web", imagePullPolicy="IfNotPresent")
    async with node.running() as agent:
        before = await totals(agent)
        spec = msgspec.structs.replace(VOLUMES.spec, ephemeralContainers=[debugger])  # type: ignore[type-var]
        node.feed.put(msgspec.structs.replace(VOLUMES, spec=spec))
        await trio.sleep(120)
        return before, await totals(agent)


async def a_node_without_memory(base: Path) -> tuple[Totals, Totals]:
    node, machine = Host(base), Machine()
    node.signals = machine
    async with node.running(from_api(make_pod()), eviction=HARD) as agent:
        await trio.sleep(15)
        before = await totals(agent)
        machine.memory = 90 * MI
        await trio.sleep(15)
        return before, await totals(agent)


async def a_critical_pod_that_needs_room(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    node.allocatable = {"cpu": 4 * NANO, "pods": 3 * NANO}
    victim, never = sized("victim", "2", source="api"), sized("never", "9", source="api")
    async with node.running(victim) as agent:
        await trio.sleep(5)
        before = await totals(agent)
        node.feed.put(victim, never, sized("critical", "3"))
        await trio.sleep(90)
        return before, await totals(agent)


async def pods_with_cpus_and_memory_of_their_own(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    policies = static(memory=True, topology="single-numa-node", options={"full-pcpus-only": True})
    node.managers = partial(load_managers, policies, base / "root", two_nodes)
    async with node.running(managers=policies) as agent:
        await trio.sleep(5)
        before = await totals(agent)
        node.feed.put(
            guaranteed("fits", "2"),
            guaranteed("large", "10"),
            guaranteed("odd", "3"),
            # Half of what is left of each node: no memory node has it all.
            guaranteed("huge", "2", "7500Mi"),
        )
        await trio.sleep(5)
        return before, await totals(agent)


async def pods_that_are_resized(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    node.allocatable = {"cpu": 4 * NANO, "pods": 3 * NANO}
    node.runtime.faults.add(FaultKind.ERROR, "UpdateContainerResources", times=None)
    one, two, other = (sized(name, "1", source="api") for name in ("one", "two", "other"))
    async with node.running(one, two, other) as agent:
        await trio.sleep(5)
        before = await totals(agent)
        # The first one fails at the runtime, the second cannot ever fit, the third one not yet.
        node.feed.put(resized(one, "2"), resized(two, "9"), resized(other, "2"))
        await trio.sleep(5)
        after = await totals(agent)
        node.feed.put(one, resized(other, "2"))
        await trio.sleep(60)
        return before, await totals(agent) | {
            name: after[name]
            for name in ("kubelet_pod_pending_resizes", "kubelet_pod_in_progress_resizes")
        }


def resized(pod: Pod, cpu: str) -> Pod:
    """Return a pod that requests `cpu` now."""
    (web,) = spec_of(pod).containers
    larger = msgspec.structs.replace(web, resources=ResourceRequirements(requests={"cpu": cpu}))
    body = msgspec.structs.replace(spec_of(pod), containers=[larger])
    return msgspec.structs.replace(pod, spec=body)


async def a_disk_full_of_images(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    images_on(node, "run", "a", "b", "c")
    async with node.running(make_pod(image="run"), image_gc=ImagePolicy()) as agent:
        await trio.sleep(400)
        return NOTHING, await totals(agent)


async def a_shutdown(base: Path) -> tuple[Totals, Totals]:
    node, logind = Host(base), FakeLogind()
    node.logind = logind
    async with node.running(make_pod(), shutdown=(ShutdownPeriod(0, 20),)) as agent:
        await trio.sleep(10)
        before = await totals(agent)
        logind.announce(True)
        await trio.sleep(30)
        after = await totals(agent)
    async with node.running(shutdown=(ShutdownPeriod(0, 20),)) as agent:
        await trio.sleep(1)
        again = await totals(agent)
    for name in ("start", "end"):  # still told by the next life of the agent
        family = f"kubelet_graceful_shutdown_{name}_time_seconds"
        assert again[family] == pytest.approx(after[family], abs=1)
    return before, after


async def pods_that_come_again_and_that_nobody_wants(base: Path) -> tuple[Totals, Totals]:
    node, pod = Host(base), make_pod(image="slow-stop-3")
    async with node.running(pod) as agent:
        await trio.sleep(10)
        before = await totals(agent)
        node.feed.put()
        await trio.sleep(1)
        node.feed.put(pod)
        await trio.sleep(30)
        again = await totals(agent)
    async with node.running() as agent:
        await trio.sleep(30)
        after = await totals(agent)
    return before, again | {k: v for k, v in after.items() if "orphaned" in k}


async def directories_that_nobody_wants(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    orphan(node, "0f-1")
    busy = orphan(node, "0f-2") / "volumes/kubernetes.io~secret/keys"
    node.mounter.busy.add(str(busy))
    unreadable = busy.parent.parent / "kubernetes.io~loop"
    unreadable.symlink_to(unreadable)
    async with node.running() as agent:
        await trio.sleep(5)
        return NOTHING, await totals(agent)


async def a_hook_that_is_cut_short(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    pod = hooked("postStart: {sleep: {seconds: 25}}")
    async with node.running(pod) as agent:
        await trio.sleep(5)
        before = await totals(agent)
        node.feed.put()
        await trio.sleep(30)
        return before, await totals(agent)


async def a_crash_and_more_to_tell_than_there_is_room_for(base: Path) -> tuple[Totals, Totals]:
    node = Host(base)
    node.signals = Machine()

    def breaks(_places: object) -> Mapping[str, object]:
        raise RuntimeError("a bug")

    async with node.running(eviction=HARD) as agent:
        await trio.sleep(5)
        before = await totals(agent)
        node.signals.observe = breaks
        await trio.sleep(20)
        for number in range(1100):
            agent.events_recorder.emit(node_ref("node"), "Normal", "Test", str(number))
        return before, await totals(agent)


async def what_waits_and_runs_meanwhile(base: Path) -> tuple[Totals, Totals]:
    node, leave = Host(base), trio.Event()
    async with node.running() as agent, trio.open_nursery() as nursery:
        before = await totals(agent)

        async def keeps_busy() -> None:
            while not leave.is_set():
                agent.events_recorder.emit(node_ref("node"), "Normal", "Test", "again")
                await trio.lowlevel.checkpoint()

        def blocks() -> None:
            trio.from_thread.run(leave.wait)

        nursery.start_soon(trio.to_thread.run_sync, blocks)
        await trio.sleep(0.1)
        nursery.start_soon(keeps_busy)
        after: dict[str, float] = {}
        with trio.fail_after(60):
            while not after.get("kubelet_trio_channel_depth"):
                after = await totals(agent)
        leave.set()
    return before, after


async def what_the_api_server_is_asked(base: Path) -> tuple[Totals, Totals]:
    missing = b'{"kind":"Status","code":404,"reason":"NotFound"}'
    gone = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(missing), missing)
    busy = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
    answers = iter((busy, gone))
    async with serving(lambda _head: next(answers)) as server:
        address = f"http://127.0.0.1:{server.port}"
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
        }
        kubeconfig = base / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        settings = load_settings([f"--kubeconfig={kubeconfig}", f"--cert-dir={base}"])
        async with open_apis(settings, "node", SystemClock()) as apis:
            with pytest.raises((KubeError, KubeUnavailableError)):
                await apis.api.get(Node, "node")
    return NOTHING, await shown(base, apis.meter)


async def what_the_kubelet_api_is_asked(base: Path) -> tuple[Totals, Totals]:
    opened: list[trio.SocketListener] = []

    async def open_any() -> list[trio.SocketListener]:
        opened.extend(await open_tcp("127.0.0.1", 0))
        return opened

    async def nobody() -> None:
        await trio.lowlevel.checkpoint()

    async with Host(base).running() as agent, trio.open_nursery() as nursery:
        before = await totals(agent)
        settings = NodeApiSettings("127.0.0.1", read_only_port=1)
        api = NodeApi(agent, settings, None, inline_offload)
        await nursery.start(api.serve_read_only, Port("read-only", "", "", open_any, nobody))
        port = opened[0].socket.getsockname()[1]
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"GET /metrics HTTP/1.0\r\nHost: n\r\n\r\n")
            page = b"".join([bytes(piece) async for piece in stream]).decode()
        after = await totals(agent)
        nursery.cancel_scope.cancel()
    for listener in opened:
        await listener.aclose()
    # What asks is in flight itself.
    (inflight,) = [v for v in page.splitlines() if v.startswith("kubelet_http_inflight_requests{")]
    labels, value = inflight.rsplit(" ", 1)
    assert float(value) == 1
    for label in ('long_running="false"', 'method="GET"', 'path="metrics"'):
        assert label in labels
    assert 'server_type="readonly"' in labels
    assert after["kubelet_http_inflight_requests"] == 0
    return before, after | {"kubelet_http_inflight_requests": float(value)}


async def shown(base: Path, meter: Meter) -> Totals:
    """Return the page of an agent that goes on with what was counted before it."""
    node = Host(base)
    async with node.running() as agent:
        agent.metrics = AgentMetrics(agent.parts, meter, agent.tree)
        return await totals(agent)


async def a_driver_that_is_called(base: Path) -> tuple[Totals, Totals]:
    world = csi.World(base / "volumes")
    world.objects.put(*csi.persistent())
    before = await shown(base / "before", Meter())
    async with world.running():
        await world.volumes.mount(csi.pod_of("u-1", csi.claimed()))
    return before, await shown(base / "after", world.meter)


async def claimed_volumes(base: Path) -> tuple[Totals, Totals]:
    async def measured() -> list[tuple[str, str, Filesystem]]:
        await trio.lowlevel.checkpoint()
        room = Filesystem(1.0, 100, 60, 40, inodes=10, inodes_free=9, inodes_used=1, abnormal=True)
        return [("prod", "data", room)]

    async with Host(base).running(volume_health=True) as agent:
        before = await totals(agent)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(agent.stats, "claimed_volumes", measured)
            return before, await totals(agent)


async def a_log_that_grows(base: Path) -> tuple[Totals, Totals]:
    node, pod = Host(base), make_pod()
    policy = LogRotationPolicy(max_size=100, max_files=3, interval=5)
    async with node.running(pod, log_rotation=policy) as agent:
        await trio.sleep(20)
        before = await totals(agent)
        (container,) = node.runtime.alive(pod_uid(pod))
        write_log(container, 1000)
        await trio.sleep(30)
        return before, await totals(agent)


async def memory_that_is_protected(base: Path) -> tuple[Totals, Totals]:
    node, tree = Host(base), FakeTree()
    node.cgroup_tree = lambda _driver: tree
    node.node_fields = {"memory_qos": True, "memory_reservation": True}
    web = "- {name: web, image: web, resources: {requests: {memory: 1Mi}}}"
    async with node.running(guaranteed("kept", "1"), make_pod("some", containers=web)) as agent:
        before = await totals(agent)
        await trio.sleep(10)
        return before, await totals(agent)


def write_log(container: FakeContainer, size: int) -> None:
    Path(container.log_path).write_bytes(b"x" * size)


Scenario = Callable[[Path], Awaitable[tuple[Totals, Totals]]]
SCENARIOS: Mapping[Scenario, tuple[str, ...]] = {
    a_pod_of_the_cluster_starts: (
        "kubelet_active_pods",
        "kubelet_cgroup_version",
        "kubelet_container_log_filesystem_used_bytes",
        "kubelet_containers_per_pod_count",
        "kubelet_desired_pods",
        "kubelet_evented_pleg_connection_success_count",
        "kubelet_metrics_provider",
        "kubelet_node_startup_duration_seconds",
        "kubelet_node_startup_pre_kubelet_duration_seconds",
        "kubelet_image_manager_ensure_image_requests_total",
        "kubelet_image_pull_duration_seconds",
        "kubelet_mirror_pods",
        "kubelet_node_name",
        "kubelet_pleg_last_seen_seconds",
        "kubelet_pleg_relist_duration_seconds",
        "kubelet_pleg_relist_interval_seconds",
        "kubelet_pod_start_duration_seconds",
        "kubelet_pod_start_sli_duration_seconds",
        "kubelet_pod_start_total_duration_seconds",
        "kubelet_pod_status_sync_duration_seconds",
        "kubelet_pod_worker_duration_seconds",
        "kubelet_pod_worker_start_duration_seconds",
        "kubelet_run_podsandbox_duration_seconds",
        "kubelet_running_containers",
        "kubelet_running_pods",
        "kubelet_runtime_operations_duration_seconds",
        "kubelet_runtime_operations_total",
        "kubelet_started_containers_total",
        "kubelet_started_pods_total",
        "kubelet_trio_tasks",
        "kubelet_working_pods",
        "kubernetes_build_info",
        "go_goroutines",
        "process_cpu_seconds_total",
        "process_virtual_memory_max_bytes",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    ),
    a_pod_with_volumes_and_users_of_its_own: (
        "kubelet_cgroup_manager_duration_seconds",
        "kubelet_image_volume_mounted_errors_total",
        "kubelet_image_volume_mounted_succeed_total",
        "kubelet_image_volume_requested_total",
        "kubelet_managed_ephemeral_containers",
        "kubelet_run_podsandbox_errors_total",
        "kubelet_runtime_operations_errors_total",
        "kubelet_started_containers_errors_total",
        "kubelet_started_pods_errors_total",
        "kubelet_started_user_namespaced_pods_errors_total",
        "kubelet_started_user_namespaced_pods_total",
        "prober_probe_duration_seconds",
        "prober_probe_total",
        "storage_operation_duration_seconds",
        "volume_operation_total_seconds",
        "volume_manager_total_volumes",
    ),
    a_node_without_memory: ("kubelet_evictions", "kubelet_eviction_stats_age_seconds"),
    a_critical_pod_that_needs_room: ("kubelet_preemptions", "kubelet_admission_rejections_total"),
    pods_with_cpus_and_memory_of_their_own: (
        "kubelet_container_aligned_compute_resources_count",
        "kubelet_container_aligned_compute_resources_failure_count",
        "kubelet_cpu_manager_allocation_per_numa",
        "kubelet_cpu_manager_exclusive_cpu_allocation_count",
        "kubelet_cpu_manager_pinning_errors_total",
        "kubelet_cpu_manager_pinning_requests_total",
        "kubelet_cpu_manager_shared_pool_size_millicores",
        "kubelet_memory_manager_pinning_requests_total",
        "kubelet_topology_manager_admission_duration_ms",
        "kubelet_topology_manager_admission_errors_total",
        "kubelet_topology_manager_admission_requests_total",
    ),
    pods_that_are_resized: (
        "kubelet_container_requested_resizes_total",
        "kubelet_pod_deferred_accepted_resizes_total",
        "kubelet_pod_in_progress_resizes",
        "kubelet_pod_infeasible_resizes_total",
        "kubelet_pod_pending_resizes",
        "kubelet_pod_resize_duration_milliseconds",
    ),
    a_disk_full_of_images: ("kubelet_image_garbage_collected_total",),
    a_shutdown: (
        "kubelet_graceful_shutdown_end_time_seconds",
        "kubelet_graceful_shutdown_start_time_seconds",
    ),
    pods_that_come_again_and_that_nobody_wants: (
        "kubelet_orphaned_runtime_pods_total",
        "kubelet_restarted_pods_total",
    ),
    directories_that_nobody_wants: (
        "kubelet_orphan_pod_cleaned_volumes",
        "kubelet_orphan_pod_cleaned_volumes_errors",
        "reconstruct_volume_operations_total",
        "reconstruct_volume_operations_errors_total",
    ),
    a_container_that_ends: ("kubelet_terminated_containers_total",),
    a_hook_that_is_cut_short: ("kubelet_sleep_action_terminated_early_total",),
    a_crash_and_more_to_tell_than_there_is_room_for: (
        "kubelet_trio_child_restarts_total",
        "kubelet_trio_events_dropped_total",
    ),
    a_driver_that_is_called: ("csi_operations_seconds",),
    claimed_volumes: (
        "kubelet_volume_stats_available_bytes",
        "kubelet_volume_stats_capacity_bytes",
        "kubelet_volume_stats_health_status_abnormal",
        "kubelet_volume_stats_inodes",
        "kubelet_volume_stats_inodes_free",
        "kubelet_volume_stats_inodes_used",
        "kubelet_volume_stats_used_bytes",
    ),
    a_log_that_grows: ("kubelet_trio_log_rotations_total",),
    memory_that_is_protected: (
        "kubelet_memory_qos_node_memory_low_bytes",
        "kubelet_memory_qos_node_memory_min_bytes",
    ),
}
# With sockets or threads, whose time is not virtual.
REAL: Mapping[Scenario, tuple[str, ...]] = {
    what_the_api_server_is_asked: (
        "rest_client_rate_limiter_duration_seconds",
        "rest_client_request_duration_seconds",
        "rest_client_request_retries_total",
        "rest_client_request_size_bytes",
        "rest_client_requests_total",
        "rest_client_response_size_bytes",
    ),
    what_the_kubelet_api_is_asked: (
        "kubelet_http_inflight_requests",
        "kubelet_http_requests_duration_seconds",
        "kubelet_http_requests_total",
    ),
    what_waits_and_runs_meanwhile: (
        "kubelet_trio_channel_depth",
        "kubelet_trio_event_loop_lag_seconds",
        "kubelet_trio_worker_threads",
    ),
}
# What tests/node/test_startup.py measures.
STARTUP = {n for n in FAMILIES if n.startswith("kubelet_node_startup_")}
# What tests/node/test_certificates.py lets happen to certificates.
CERTIFICATES = {n for n in FAMILIES if "_certificate_manager_" in n or "_expiration_renew_" in n}
ELSEWHERE = {
    "kubelet_cri_losing_support": "tests/agent/test_metrics.py",
    "kubelet_credential_provider_config_info": "tests/credentials/test_plugins.py",
    "kubelet_evented_pleg_connection_latency_seconds": "tests/pleg/test_exits_are_known.py",
    "kubelet_first_network_pod_start_sli_duration_seconds": "tests/status/test_pod_starts.py",
    "kubelet_imagemanager_image_mustpull_checks_total": "tests/credentials/test_image_access.py",
    "kubelet_imagemanager_ondisk_pulledrecords": "tests/credentials/test_image_access.py",
    "kubelet_imagemanager_ondisk_pullintents": "tests/credentials/test_image_access.py",
    "kubelet_pleg_pod_relist_duration_seconds": "tests/pleg/test_exits_are_known.py",
    "kubelet_trio_spans_dropped_total": "tests/tracing/test_sender.py",
    "kubelet_trio_spans_exported_total": "tests/tracing/test_sender.py",
    "kubelet_volume_metric_collection_duration_seconds": "tests/stats/test_volumes.py",
    "kubernetes_feature_enabled": "tests/agent/test_metrics.py",
    "process_network_receive_bytes_total": "tests/stats/test_process.py",
    "process_network_transmit_bytes_total": "tests/stats/test_process.py",
    "plugin_manager_total_plugins": "tests/agent/test_plugins.py",
    "kubelet_pod_resources_endpoint_errors_get": "tests/agent/test_node_sockets.py",
    "kubelet_pod_resources_endpoint_requests_get": "tests/agent/test_node_sockets.py",
    "kubelet_pod_resources_endpoint_requests_get_allocatable": "tests/agent/test_node_sockets.py",
    "kubelet_pod_resources_endpoint_requests_list": "tests/agent/test_node_sockets.py",
    "kubelet_pod_resources_endpoint_requests_total": "tests/agent/test_node_sockets.py",
    "kubelet_pod_watch_events_dropped_total": "tests/server/pods_api/pods.py",
    "kubelet_trio_recorder_bytes": "tests/agent/test_recorder.py",
    "kubelet_trio_recorder_entries_total": "tests/agent/test_recorder.py",
    "kubelet_trio_recorder_lost_total": "tests/agent/test_recorder.py",
    "kubernetes_healthcheck": "tests/server/routes/test_health.py",
    "kubernetes_healthchecks_total": "tests/server/routes/test_health.py",
    "kubelet_credential_provider_plugin_duration": "tests/credentials/test_plugins.py",
    "kubelet_credential_provider_plugin_errors_total": "tests/credentials/test_plugins.py",
    "kubelet_trio_container_device_info": "tests/agent/test_device_plugins.py",
    "kubelet_device_plugin_alloc_duration_seconds": "tests/agent/test_device_plugins.py",
    "kubelet_device_plugin_registration_total": "tests/agent/test_device_plugins.py",
    "dra_operations_duration_seconds": "tests/managers/claims/test_manager.py",
    "dra_resource_claims_in_use": "tests/agent/test_claims.py",
    "dra_grpc_operations_duration_seconds": "tests/managers/claims/test_drivers.py",
    "kubelet_evented_pleg_connection_error_count": "tests/pleg/test_exits_are_known.py",
    "kubelet_memory_manager_pinning_errors_total": "tests/managers/node/test_holdings.py",
    "kubelet_lifecycle_handler_http_fallbacks_total": "tests/agent/test_hooks.py",
    "kubelet_podcertificate_states": "tests/agent/test_projections.py",
    "kubelet_websocket_streaming_requests_total": "tests/server/streams/test_translated.py",
    "volume_manager_selinux_container_errors_total": "tests/volumes/test_labels.py",
    "volume_manager_selinux_container_warnings_total": "tests/volumes/test_labels.py",
    "volume_manager_selinux_pod_context_mismatch_errors_total": "tests/volumes/test_labels.py",
    "volume_manager_selinux_pod_context_mismatch_warnings_total": "tests/volumes/test_labels.py",
    "volume_manager_selinux_volume_context_mismatch_errors_total": "tests/volumes/test_labels.py",
    "volume_manager_selinux_volume_context_mismatch_warnings_total": "tests/volumes/test_labels.py",
    "volume_manager_selinux_volumes_admitted_total": "tests/volumes/test_labels.py",
}


def moved(before: Totals, after: Totals) -> set[str]:
    return {name for name in after if after[name] != before.get(name, 0.0)}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
async def test_what_happens_moves_the_figures(
    scenario: Scenario, tmp_path: Path, autojump_clock: MockClock
) -> None:
    assert set(SCENARIOS[scenario]) - moved(*await scenario(tmp_path)) == set()


@pytest.mark.parametrize("scenario", REAL, ids=lambda s: s.__name__)
async def test_what_really_happens_moves_the_figures(scenario: Scenario, tmp_path: Path) -> None:
    assert set(REAL[scenario]) - moved(*await scenario(tmp_path)) == set()


@pytest.mark.parametrize(
    ("message", "errors"),
    [("failed to mount: ImageVolumeMountFailed: no such layer", 1), ("no space left", 0)],
)
async def test_a_container_that_fails_otherwise_has_no_failed_mount(
    tmp_path: Path, autojump_clock: MockClock, message: str, errors: int
) -> None:
    node, images = Host(tmp_path), "kubelet_image_volume_mounted"
    node.runtime.handler_features[""] = v1.RuntimeHandlerFeatures(user_namespaces=True)
    error = RuntimeCallError("CreateContainer", message)
    node.runtime.faults.add(FaultKind.ERROR, "CreateContainer", error=error)
    async with node.running(VOLUMES) as agent:
        await trio.sleep(120)
        found = await totals(agent)
    assert found[f"{images}_errors_total"] == errors
    assert found[f"{images}_succeed_total"] == 1


def test_every_family_is_moved_by_something() -> None:
    shown = {n for names in (*SCENARIOS.values(), *REAL.values()) for n in names}
    assert shown | set(ELSEWHERE) | CERTIFICATES | STARTUP == set(FAMILIES)
    root = Path(__file__).parents[2]
    certificates = dict.fromkeys(CERTIFICATES, "tests/node/test_certificates.py")
    for name, file in {**ELSEWHERE, **certificates}.items():
        assert name in (root / file).read_text("utf-8")
