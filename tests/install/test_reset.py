"""What a reset ends and removes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.cli.main import cli
from kubelet_trio.cri import v1
from kubelet_trio.install.facts import Wanted
from kubelet_trio.install.reset import (
    LOGIND,
    LeftPod,
    carry_out,
    end_pods,
    list_pods,
    plan_reset,
)
from kubelet_trio.model import INSTANCE, SandboxId
from kubelet_trio.server import LOCK_NAME, root_lock
from kubelet_trio.testing import FakeRuntime

GRACE = "io.kubernetes.pod.terminationGracePeriod"


async def add_pod(
    runtime: FakeRuntime, name: str, *, labels: bool = True, grace: int = 5, instance: str = ""
) -> SandboxId:
    identity = {
        "io.kubernetes.pod.uid": f"uid-{name}",
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.container.name": "main",
    }
    annotations = {GRACE: str(grace)} | ({INSTANCE: instance} if instance else {})
    sandbox = v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="default"),
        labels=identity if labels else {},
        annotations=annotations,
    )
    sandbox_id = await runtime.run_pod_sandbox(sandbox)
    container = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main"),
        image=v1.ImageSpec(image="i"),
        labels=identity if labels else {},
        annotations=annotations,
    )
    await runtime.pull_image(v1.ImageSpec(image="i"), None, sandbox)
    container_id = await runtime.create_container(sandbox_id, container, sandbox)
    await runtime.start_container(container_id)
    return sandbox_id


async def test_only_pods_of_a_kubelet_are_ended_within_their_grace(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    await add_pod(runtime, "web", grace=5)
    await add_pod(runtime, "slow", grace=300)
    foreign = {
        await add_pod(runtime, "crictl", labels=False),
        await add_pod(runtime, "embedded", instance="other"),
    }
    pods = await list_pods(runtime, 30)
    assert {pod.name: list(pod.running.values()) for pod in pods} == {
        "default/web": [5],
        "default/slow": [30],
    }
    assert await end_pods(runtime, pods) == []
    assert {sandbox.id for sandbox in await runtime.list_pod_sandboxes()} == foreign
    # A second time there is nothing to do.
    assert await list_pods(runtime, 30) == []
    assert await end_pods(runtime, pods) == []


def test_state_logs_leases_and_cgroups_go_and_the_rest_stays(tmp_path: Path) -> None:
    root_dir, logs = tmp_path / "kubelet", tmp_path / "pods"
    wanted = Wanted(root_dir=str(root_dir), pod_logs_dir=str(logs))
    networks = tmp_path / "var/lib/cni/networks/kubelet-trio"
    cgroup = tmp_path / "cgroup"
    mine = [
        root_dir / "pods/uid-a/volumes/x",
        root_dir / "kubelet-trio.lock",
        logs / "default_a_uid-a/main/0.log",
        networks / "10.86.0.2",
        tmp_path / LOGIND.lstrip("/"),
    ]
    others = [
        root_dir / "config.yaml",
        logs / "default_b_uid-b/main/0.log",
        networks / "10.86.0.3",
        networks / "last_reserved_ip.0",
    ]
    for path in (*mine, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("other\n")
    (networks / "10.86.0.2").write_text("s1\r\neth0")
    mine[-1].write_text("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=30\n")
    (cgroup / "kubepods/besteffort").mkdir(parents=True)
    (cgroup / "system.slice").mkdir()
    mounts = tmp_path / "mountinfo"
    mounts.write_text("")
    pods = [LeftPod(SandboxId("s1"), "uid-a", "default/a", {})]
    plan = plan_reset(wanted, pods, CgroupHost(2, {"": cgroup}), mounts, tmp_path)
    assert ("end", "pod default/a (0 running)") in list(plan.lines())
    assert carry_out(wanted, plan, systemd=False, root=tmp_path) == []
    assert [path for path in mine if path.exists()] == []
    assert [path for path in others if not path.exists()] == []
    assert [path.name for path in cgroup.iterdir()] == ["system.slice"]


def test_mounts_below_the_root_directory_are_unmounted_the_deepest_first(tmp_path: Path) -> None:
    wanted = Wanted(root_dir="/var/lib/kubelet")
    line = "1 2 0:3 / {} rw - tmpfs tmpfs rw\n"
    paths = ("/", "/var/lib/kubelet", "/var/lib/kubelet/pods/u/v", "/var/lib/kubelet-other")
    mounts = tmp_path / "mountinfo"
    mounts.write_text("".join(map(line.format, (*paths, "/var/lib/kubelet/pods/u/v/in"))))
    plan = plan_reset(wanted, [], CgroupHost(2, {"": tmp_path}), mounts, tmp_path)
    assert plan.mounts == ["/var/lib/kubelet/pods/u/v/in", "/var/lib/kubelet/pods/u/v"]


def test_the_root_directory_is_unmounted_last_if_an_agent_has_bound_it(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    top, volume = "1 0 8:1 / / rw - ext4 /dev/sda rw\n", "/var/lib/kubelet/pods/u/v"
    below = f"3 2 0:3 / {volume} rw - tmpfs tmpfs rw\n"
    bound = "2 1 8:1 /var/lib/kubelet /var/lib/kubelet rw shared:1 - ext4 /dev/sda rw\n"
    disk = "2 1 8:2 / /var/lib/kubelet rw - ext4 /dev/sdb rw\n"
    for own, planned in ((bound, [volume, "/var/lib/kubelet"]), (disk, [volume])):
        mounts.write_text(top + own + below)
        plan = plan_reset(Wanted(), [], CgroupHost(2, {"": tmp_path}), mounts, tmp_path)
        assert plan.mounts == planned


def test_a_reset_refuses_while_an_agent_runs_and_says_what_it_cannot_reach(tmp_path: Path) -> None:
    arguments = ["reset", "--root-dir", str(tmp_path), "--yes"]
    endpoint = f"--container-runtime-endpoint=unix://{tmp_path}/none.sock"
    with root_lock(tmp_path / LOCK_NAME):
        done = CliRunner().invoke(cli, [*arguments, endpoint])
    assert done.exit_code == 1
    assert f"an agent runs on {tmp_path}" in done.output
    done = CliRunner().invoke(cli, [*arguments, endpoint])
    assert done.exit_code == 1
    assert "none.sock" in done.output
    assert (tmp_path / LOCK_NAME).exists()
