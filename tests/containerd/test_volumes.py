"""emptyDir and hostPath, as containers find them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import (
    Agent,
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    live_containers,
    pod,
)


def mounted(name: str, path: str, **fields: object) -> Json:
    return {"name": name, "mountPath": path, **fields}


def test_an_empty_dir_in_memory_is_shared_and_is_a_tmpfs(agent: Agent, cri: CriClient) -> None:
    share = [mounted("mem", "/mem")]
    agent.put(
        pod(
            "memory",
            container("main", forever("echo here > /mem/file"), volumeMounts=share),
            container("peer", forever(), volumeMounts=share),
            volumes=[{"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}],
        )
    )
    agent.wait_ready("memory")
    live = live_containers(cri, "memory-node")
    eventually(lambda: "file" in cri.run(live["peer"], "ls", "/mem"))
    assert cri.run(live["peer"], "cat", "/mem/file") == "here\n"
    lines = [line.split() for line in cri.run(live["main"], "cat", "/proc/mounts").splitlines()]
    found = next(fields for fields in lines if fields[1] == "/mem")
    assert found[2] == "tmpfs"
    assert "size=8192k" in found[3].split(",")
    agent.drop("memory")
    agent.wait_gone("memory")


def test_an_empty_dir_survives_its_containers(agent: Agent, cri: CriClient) -> None:
    script = "echo life >> /data/lives; [ $(wc -l < /data/lives) -ge 2 ] || exit 1; " + forever()
    main = container("main", script, volumeMounts=[mounted("data", "/data")])
    agent.put(pod("survives", main, volumes=[{"name": "data", "emptyDir": {}}]))
    agent.wait(
        "survives",
        lambda p: (
            container_status(p, "main").get("restartCount") == 1
            and "running" in container_status(p, "main")["state"]
        ),
        what="restarted",
    )
    agent.drop("survives")
    agent.wait_gone("survives")


def test_sub_paths_show_parts_of_a_volume(agent: Agent, cri: CriClient, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "file").write_text("the file")
    main = container(
        "main",
        forever(),
        env=[{"name": "WHICH", "value": "two"}],
        volumeMounts=[
            mounted("host", "/dir", subPath="one"),
            mounted("host", "/file", subPath="one/file", readOnly=True),
            mounted("host", "/made", subPathExpr="$(WHICH)/deep"),
        ],
    )
    agent.put(pod("subpath", main, volumes=[{"name": "host", "hostPath": {"path": str(tmp_path)}}]))
    agent.wait_ready("subpath")
    live = live_containers(cri, "subpath-node")["main"]
    assert cri.run(live, "cat", "/dir/file") == "the file"
    assert cri.run(live, "cat", "/file") == "the file"
    cri.run(live, "touch", "/made/mark")
    assert (tmp_path / "two" / "deep" / "mark").exists()
    with pytest.raises(RuntimeError, match="Read-only"):
        cri.run(live, "sh", "-c", "echo no > /file")
    agent.drop("subpath")
    agent.wait_gone("subpath")
    assert (tmp_path / "one" / "file").read_text() == "the file"


# Upstream's "nonexistent volume subPath should have the correct mode and owner using FSGroup".
def test_a_sub_path_made_in_memory_has_the_mode_of_its_volume(agent: Agent) -> None:
    look = container(
        "main",
        "stat -c '%a %u %g' /sub > /dev/termination-log",
        volumeMounts=[mounted("mem", "/sub", subPath="test-sub")],
    )
    agent.put(
        pod(
            "modes",
            look,
            restartPolicy="Never",
            securityContext={"runAsUser": 1001, "fsGroup": 123},
            volumes=[{"name": "mem", "emptyDir": {"medium": "Memory"}}],
        )
    )
    ended = agent.wait("modes", lambda p: p["status"]["phase"] == "Succeeded", what="ended")
    assert container_status(ended, "main")["state"]["terminated"]["message"] == "3777 0 123\n"
    agent.drop("modes")
    agent.wait_gone("modes")


def test_a_sub_path_may_not_lead_out_of_its_volume(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "out").symlink_to("/etc")
    volume = {"name": "host", "hostPath": {"path": str(tmp_path / "volume")}}
    main = container("main", forever(), volumeMounts=[mounted("host", "/out", subPath="out")])
    agent.put(pod("escape", main, volumes=[volume]))
    held = agent.wait(
        "escape",
        lambda p: (
            container_status(p, "main")["state"].get("waiting", {}).get("reason")
            == "CreateContainerConfigError"
        ),
        what="refused",
    )
    assert held["status"]["phase"] == "Pending"
    agent.drop("escape")
    agent.wait_gone("escape")


def test_host_paths_are_made_or_asked_for_by_their_type(
    agent: Agent, cri: CriClient, tmp_path: Path
) -> None:
    kinds = {"dir": "DirectoryOrCreate", "file": "FileOrCreate", "any": ""}
    (tmp_path / "any").write_text("any")
    volumes = [
        {"name": name, "hostPath": {"path": str(tmp_path / name), "type": kind}}
        for name, kind in kinds.items()
    ]
    mounts = [mounted(name, f"/host/{name}") for name in kinds]
    agent.put(pod("kinds", container("main", forever(), volumeMounts=mounts), volumes=volumes))
    agent.wait_ready("kinds")
    live = live_containers(cri, "kinds-node")["main"]
    assert cri.run(live, "ls", "/host").split() == ["any", "dir", "file"]
    assert (tmp_path / "dir").is_dir()
    assert (tmp_path / "file").is_file()
    agent.drop("kinds")
    agent.wait_gone("kinds")
    assert (tmp_path / "any").read_text() == "any"
    assert (tmp_path / "dir").is_dir()


def test_a_pod_waits_for_a_host_path_that_must_be_there(agent: Agent, tmp_path: Path) -> None:
    late = tmp_path / "late"
    volume = {"name": "late", "hostPath": {"path": str(late), "type": "Directory"}}
    main = container("main", forever(), volumeMounts=[mounted("late", "/late")])
    agent.put(pod("late", main, volumes=[volume]))
    eventually(lambda: "FailedMount" in agent.cli("events"), what="a FailedMount event")
    assert agent.pods()["late"]["status"]["phase"] == "Pending"
    late.mkdir()
    agent.wait_ready("late")
    agent.drop("late")
    agent.wait_gone("late")
    assert late.is_dir()


@pytest.fixture
def shared_mount(tmp_path: Path) -> Iterator[Path]:
    """A directory whose mounts reach whoever asks for propagation."""
    subprocess.run(["mount", "--bind", tmp_path, tmp_path], check=True)
    subprocess.run(["mount", "--make-shared", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "-R", "-l", tmp_path], check=True)


def test_later_mounts_reach_a_container_that_asks_for_them(
    agent: Agent, cri: CriClient, shared_mount: Path
) -> None:
    (shared_mount / "later").mkdir()
    volume = {"name": "host", "hostPath": {"path": str(shared_mount)}}
    asks = mounted("host", "/asks", mountPropagation="HostToContainer")
    main = container("main", forever(), volumeMounts=[asks, mounted("host", "/private")])
    agent.put(pod("propagate", main, volumes=[volume]))
    agent.wait_ready("propagate")
    later = shared_mount / "later"
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", later], check=True)
    (later / "mark").touch()
    live = live_containers(cri, "propagate-node")["main"]
    assert cri.run(live, "ls", "/asks/later") == "mark\n"
    assert cri.run(live, "ls", "/private/later") == ""
    agent.drop("propagate")
    agent.wait_gone("propagate")


def test_mounts_that_a_container_propagates_into_an_empty_dir_do_not_hold_up_its_end(
    agent: Agent,
) -> None:
    main = container(
        "main",
        "mkdir /cache/own && mount -t tmpfs none /cache/own && printf 'the end' > /cache/log.txt",
        volumeMounts=[mounted("cache", "/cache", mountPropagation="Bidirectional")],
        securityContext={"privileged": True},
        terminationMessagePath="/cache/log.txt",
    )
    agent.put(
        pod("both-ways", main, volumes=[{"name": "cache", "emptyDir": {}}], restartPolicy="Never")
    )
    ended = agent.wait("both-ways", lambda p: p["status"]["phase"] == "Succeeded", what="ended")
    state = container_status(ended, "main")["state"]["terminated"]
    assert state["message"] == "the end"
    agent.drop("both-ways")
    agent.wait_gone("both-ways")
