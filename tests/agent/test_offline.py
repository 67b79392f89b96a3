"""A whole agent that starts without its API server: by what is on disk, in virtual time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import (
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    EnvVar,
    EnvVarSource,
    Node,
    Pod,
    PodSpec,
    PodStatus,
    ProjectedVolumeSource,
    Secret,
    SecretKeySelector,
    Service,
    ServiceAccount,
    ServiceAccountTokenProjection,
    ServicePort,
    ServiceSpec,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon.join import make_keeper
from kubelet_trio.model import PodUid, inline_offload, pod_uid
from kubelet_trio.pods import EndReason, PodRecords, TerminationRequest, load_records
from kubelet_trio.sources.apiserver import FALLBACK_AFTER
from kubelet_trio.testing import FakeMounter, FakeRuntime, KubeFaultKind
from tests.agent.test_cluster import NAME, World

SECRET = EnvVar(
    name="A", valueFrom=EnvVarSource(secretKeyRef=SecretKeySelector(key="a", name="secret"))
)
TOKEN = VolumeProjection(
    serviceAccountToken=ServiceAccountTokenProjection(path="token", expirationSeconds=3600)
)


CONFIG_FILE = "kubernetes.io~configmap/config/b"
TOKEN_FILE = "kubernetes.io~projected/token/token"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    furnish(made)
    return made


def furnish(made: World) -> None:
    """Put what pods refer to on the server, and let the agent keep it."""
    made.offline = made.host.base / "root" / "offline"
    meta = {name: ObjectMeta(name=name, namespace="default") for name in ("secret", "config")}
    made.kube.add(Secret(metadata=meta["secret"], stringData={"a": "s3cret"}))
    made.kube.add(ConfigMap(metadata=meta["config"], data={"b": "1"}))
    made.kube.add(ServiceAccount(metadata=ObjectMeta(name="default", namespace="default")))
    made.kube.add(
        Service(
            metadata=ObjectMeta(name="kubernetes", namespace="default"),
            spec=ServiceSpec(clusterIP="10.96.0.1", ports=[ServicePort(port=443, name="https")]),
        )
    )


def add_pod(world: World, name: str = "web") -> PodUid:
    """Bind a pod that uses one of everything."""
    mounts = [
        VolumeMount(name="config", mountPath="/config"),
        VolumeMount(name="token", mountPath="/token"),
    ]
    container = Container(
        name="web", image="web", imagePullPolicy="IfNotPresent", env=[SECRET], volumeMounts=mounts
    )
    volumes = [
        Volume(name="config", configMap=ConfigMapVolumeSource(name="config")),
        Volume(name="token", projected=ProjectedVolumeSource(sources=[TOKEN])),
    ]
    meta = ObjectMeta(name=name, namespace="default")
    spec = PodSpec(
        containers=[container], volumes=volumes, nodeName=NAME, serviceAccountName="default"
    )
    return pod_uid(world.kube.add(Pod(metadata=meta, spec=spec)))


def reboot(world: World) -> None:
    """Lose all that a machine's reboot loses, tmpfs among it."""
    world.host.runtime = FakeRuntime(write_logs=True, status_lag=0.06)
    world.host.mounter = FakeMounter()
    for volumes in (world.host.base / "root" / "pods").glob("*/volumes"):
        shutil.rmtree(volumes)


def volume_file(world: World, uid: PodUid, path: str) -> str:
    return (world.host.base / "root/pods" / uid / "volumes" / path).read_text()


def environment(world: World, name: str = "web") -> dict[str, bytes]:
    instance = world.host.runtime.instances(name)[-1]
    return {variable.key: variable.value for variable in instance.config.envs}


async def until(condition: Callable[[], object], within: float = 60) -> None:
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110  # files do not tell
            await trio.sleep(1)


async def run_once(world: World, *names: str) -> dict[str, PodUid]:
    """Run an agent until these pods are ready and known on disk, then cut it off."""
    async with world.running():
        uids = {name: add_pod(world, name) for name in names}
        await world.wait(lambda: all(world.is_ready(name) for name in names))
        await trio.sleep(10)
    return uids


CUTS = pytest.mark.parametrize("cut", ["go_down", "hang"])


@CUTS
async def test_a_node_that_reboots_cut_off_starts_its_pods_as_they_were(
    world: World, autojump_clock: MockClock, cut: str
) -> None:
    uids = await run_once(world, "web")
    token = volume_file(world, uids["web"], TOKEN_FILE)
    getattr(world.kube, cut)()
    reboot(world)
    async with world.running() as agent:
        await trio.sleep(FALLBACK_AFTER - 1)
        assert world.host.runtime.alive() == []
        await until(world.host.runtime.alive)
        told = environment(world)
        assert told["A"] == b"s3cret"
        assert told["KUBERNETES_SERVICE_HOST"] == b"10.96.0.1"
        assert volume_file(world, uids["web"], CONFIG_FILE) == "1"
        assert volume_file(world, uids["web"], TOKEN_FILE) == token
        (source,) = (s for s in agent.status().sources if s.name.startswith("api"))
        assert not source.delivered
        assert "1 pods run as last known" in source.problems[0].message
        await trio.sleep(3600)
        world.kube.come_back()
        await trio.sleep(60)
        await world.wait(world.is_ready)
        (source,) = (s for s in agent.status().sources if s.name.startswith("api"))
        assert source.delivered
        assert source.problems == ()
        assert len(world.host.runtime.alive()) == 1
        assert len(world.host.calls("CreateContainer")) == 1
    assert world.host.runtime.violations == []


@CUTS
async def test_an_agent_that_starts_cut_off_restarts_nothing_and_looks_after_what_runs(
    world: World, autojump_clock: MockClock, cut: str
) -> None:
    await run_once(world, "web")
    getattr(world.kube, cut)()
    async with world.running():
        await trio.sleep(60)
        (container,) = world.host.runtime.alive()
        assert len(world.host.calls("CreateContainer")) == 1
        world.host.runtime.kill(container.id, 1)
        await trio.sleep(60)
        assert len(world.host.runtime.alive()) == 1
        world.kube.come_back()
        await trio.sleep(60)
        assert len(world.host.calls("CreateContainer")) == 2


@pytest.mark.parametrize("trouble", [KubeFaultKind.BROKEN, KubeFaultKind.HANG])
async def test_a_server_that_falls_silent_again_before_all_was_read_holds_nothing_up(
    world: World, autojump_clock: MockClock, trouble: KubeFaultKind
) -> None:
    uids = await run_once(world, "web")
    reboot(world)
    for resource in ("secrets", "configmaps", "services", "serviceaccounts/token"):
        world.kube.faults.add(trouble, resource=resource, times=None)
    async with world.running() as agent:
        await until(world.host.runtime.alive, 300)
        (source,) = (s for s in agent.status().sources if s.name.startswith("api"))
        assert source.delivered
        assert environment(world)["A"] == b"s3cret"
        assert volume_file(world, uids["web"], CONFIG_FILE) == "1"


async def test_what_was_deleted_while_cut_off_goes_and_what_is_new_comes(
    world: World, autojump_clock: MockClock
) -> None:
    uids = await run_once(world, "a", "b", "c")
    world.kube.go_down()
    reboot(world)
    async with world.running() as agent:
        world.kube.remove(Pod, "a", grace_period=0)
        world.kube.remove(Pod, "b", grace_period=0)
        again = add_pod(world, "b")
        await trio.sleep(60)
        assert len(world.host.runtime.alive()) == 3
        world.kube.come_back()
        await world.wait(lambda: world.is_ready("b") and world.is_ready("c"))
        await trio.sleep(60)
        assert agent.pods.value.keys() == {again, uids["c"]}
        assert len(world.host.runtime.alive()) == 2
        assert len(world.host.runtime.instances("c")) == 1
        await trio.sleep(10)
    world.kube.go_down()
    reboot(world)
    async with world.running() as agent:
        await trio.sleep(60)
        assert agent.pods.value.keys() == {again, uids["c"]}
    assert world.host.runtime.violations == []


async def test_what_the_disk_does_not_know_is_left_alone_until_the_server_has_spoken(
    world: World, autojump_clock: MockClock
) -> None:
    await run_once(world, "web", "unknown")
    files = sorted((world.offline or Path()).glob("pod-*.json"))
    (lost,) = (f for f in files if b'"name":"unknown"' in f.read_bytes())
    lost.write_bytes(lost.read_bytes()[:-40])
    world.kube.go_down()
    async with world.running():
        await trio.sleep(600)
        assert len(world.host.runtime.alive()) == 2
        assert lost.with_name(lost.name + ".corrupt").exists()
        world.kube.come_back()
        await trio.sleep(60)
        assert len(world.host.runtime.alive()) == 2
        assert len(world.host.calls("CreateContainer")) == 2


async def test_a_pod_that_was_being_deleted_or_was_over_does_not_start_again(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        world.bind("job", "exit-0", restartPolicy="Never")
        add_pod(world, "leaving")
        await world.wait(
            lambda: world.status("job").phase == "Succeeded" and world.is_ready("leaving")
        )
        world.kube.change(Pod, "leaving", {"metadata": {"finalizers": ["example.com/kept"]}})
        world.kube.remove(Pod, "leaving", grace_period=1)
        await trio.sleep(30)
    world.kube.go_down()
    reboot(world)
    async with world.running():
        await trio.sleep(120)
        assert world.host.calls("RunPodSandbox") == []


@pytest.mark.parametrize(("is_told", "starts"), [(False, True), (True, False)])
async def test_what_the_nodes_shutdown_ended_starts_again_unless_the_server_knows_that_it_failed(
    world: World, autojump_clock: MockClock, is_told: bool, starts: bool
) -> None:
    uids = await run_once(world, "web")
    pods_dir = world.host.base / "root" / "pods"
    record = load_records(pods_dir)[uids["web"]]
    failed = msgspec.structs.replace(record.pod, status=PodStatus(phase="Failed"))
    end = TerminationRequest(uids["web"], EndReason.SHUTDOWN, grace_period=1, requested_at=1.0)
    ended = msgspec.structs.replace(record, pod=failed, termination=end)
    if is_told:
        async with world.running():
            world.kube.change(Pod, "web", {"status": {"phase": "Failed"}}, subresource="status")
            await trio.sleep(30)
    world.kube.go_down()
    reboot(world)
    await PodRecords(pods_dir, inline_offload).write(ended)
    async with world.running():
        await trio.sleep(60)
        assert bool(world.host.runtime.alive()) == starts
        world.kube.come_back()
        await trio.sleep(60)
        assert bool(world.host.runtime.alive()) == starts
        assert world.status().phase == ("Running" if starts else "Failed")


async def test_objects_that_changed_while_cut_off_are_shown_afterwards(
    world: World, autojump_clock: MockClock
) -> None:
    uids = await run_once(world, "web")
    world.kube.go_down()
    reboot(world)
    async with world.running():
        await trio.sleep(60)
        world.kube.change(ConfigMap, "config", {"data": {"b": "2"}})
        world.kube.come_back()
        await until(lambda: volume_file(world, uids["web"], CONFIG_FILE) == "2", 120)
        token = volume_file(world, uids["web"], TOKEN_FILE)
        # It is renewed as ever.
        await until(lambda: volume_file(world, uids["web"], TOKEN_FILE) != token, 2 * 3600)
        assert len(world.host.calls("CreateContainer")) == 1


async def test_a_pod_is_admitted_by_the_nodes_labels_as_last_known(
    world: World, autojump_clock: MockClock
) -> None:
    """Others label nodes as well, and a pod that is refused is over for good."""
    async with world.running():
        await world.wait(world.is_node_ready)
        world.kube.change(Node, NAME, {"metadata": {"labels": {"zone": "a"}}})
        await trio.sleep(1)
        world.host.runtime.go_down()
        world.bind(nodeSelector={"zone": "a"})
        await trio.sleep(30)
        assert world.status().phase in (None, "Pending")
    world.kube.go_down()
    reboot(world)
    async with world.running() as agent:
        with trio.fail_after(60):
            await agent.pods.wait_value(
                lambda pods: any(p.status and p.status.phase == "Running" for p in pods.values())
            )


async def test_without_it_a_node_that_starts_cut_off_waits_for_the_server(
    world: World, autojump_clock: MockClock
) -> None:
    await run_once(world, "web")
    world.kube.go_down()
    world.offline = None
    reboot(world)
    async with world.running():
        await trio.sleep(600)
        assert world.host.runtime.alive() == []


async def test_a_quiet_node_does_not_write_and_a_busy_one_not_for_statuses(
    world: World, autojump_clock: MockClock
) -> None:
    def files() -> dict[str, int]:
        return {p.name: p.stat().st_ino for p in (world.offline or Path()).iterdir()}

    await run_once(world, "web")
    before = files()
    modes = {p.stat().st_mode & 0o777 for p in (world.offline or Path()).iterdir()}
    assert modes == {0o600}
    assert (world.offline or Path()).stat().st_mode & 0o777 == 0o700
    async with world.running():
        await world.wait(world.is_node_ready)
        for _ in range(3):
            (container,) = world.host.runtime.alive()
            world.host.runtime.kill(container.id, 1)
            await trio.sleep(400)
        await trio.sleep(600)
        # The token was renewed meanwhile; of all else nothing has changed.
        written = {n for n, inode in files().items() if before.get(n) != inode}
        assert all(name.startswith("tokens-") for name in written)
        assert files().keys() == before.keys()


async def test_secrets_of_pods_that_are_gone_do_not_stay(
    world: World, autojump_clock: MockClock
) -> None:
    uids = await run_once(world, "web")
    async with world.running():
        await trio.sleep(1)
        world.kube.remove(Pod, "web", grace_period=1)
        await world.wait(world.gone)
        await trio.sleep(30)
        kinds = {p.name.partition("-")[0] for p in (world.offline or Path()).iterdir()}
        assert kinds <= {"node", "services"}
    assert uids


async def test_a_disk_that_refuses_holds_up_nothing_and_is_tried_again(
    world: World, autojump_clock: MockClock, tmp_path: Path
) -> None:
    blocker = tmp_path / "root" / "offline"
    blocker.parent.mkdir()
    blocker.write_text("in the way")
    async with world.running():
        add_pod(world)
        await world.wait(world.is_ready)
        await trio.sleep(60)
        blocker.unlink()
        await trio.sleep(60)
        assert any(p.name.startswith("secret-") for p in blocker.iterdir())


def test_what_was_kept_does_not_outlive_the_setting(tmp_path: Path) -> None:
    settings = load_settings([f"--root-dir={tmp_path}", "--kubeconfig=k", "--offline-pods"])
    assert make_keeper(settings) is not None
    kept = tmp_path / "offline"
    kept.mkdir()
    (kept / "secret-x.json").write_text("{}")
    assert make_keeper(settings) is not None
    assert kept.exists()
    assert make_keeper(load_settings([f"--root-dir={tmp_path}", "--kubeconfig=k"])) is None
    assert not kept.exists()
