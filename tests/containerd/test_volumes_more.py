"""Config maps, secrets, claims and the pod's own facts, as containers find them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.containerd.conftest import MakeAgent
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


@pytest.fixture(scope="module")
def agent(make_agent: MakeAgent) -> Agent:
    """An agent that looks for nothing of itself: what comes in time was told by the kernel."""
    agent = make_agent(config={"syncFrequency": "1h", "fileCheckFrequency": "1h"})
    agent.start()
    return agent


def document(kind: str, name: str, **fields: Any) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def secret(name: str, **data: str) -> Json:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return document("Secret", name, data=encoded)


def mounted(name: str, path: str, **fields: object) -> Json:
    return {"name": name, "mountPath": path, **fields}


def test_a_container_is_told_what_its_objects_and_its_pod_say(agent: Agent, cri: CriClient) -> None:
    agent.put(document("ConfigMap", "app", data={"HOST": "db", "PORT": "5432"}))
    agent.put(secret("keys", token="hunter2"))
    variables = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "name": "MEMORY",
            "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
        },
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "URL", "value": "$(APP_HOST):$(APP_PORT)"},
    ]
    main = container(
        "main",
        forever(),
        env=variables,
        envFrom=[{"prefix": "APP_", "configMapRef": {"name": "app"}}],
        resources={"limits": {"memory": "64Mi"}},
    )
    agent.put(pod("told", main))
    ready = agent.wait_ready("told")
    lines = cri.run(live_containers(cri, "told-node")["main"], "env").splitlines()
    told = dict(line.split("=", 1) for line in lines)
    assert told["URL"] == "db:5432"
    assert told["TOKEN"] == "hunter2"
    assert told["POD"] == "told-node"
    assert told["IP"] == ready["status"]["podIP"]
    assert told["MEMORY"] == "64"
    agent.drop("told")
    agent.wait_gone("told")


def test_a_change_reaches_a_running_container_without_a_sync(agent: Agent, cri: CriClient) -> None:
    agent.put(document("ConfigMap", "live", data={"text": "one"}))
    agent.put(secret("live-keys", token="first"))
    main = container(
        "main", forever(), volumeMounts=[mounted("c", "/config"), mounted("s", "/secret")]
    )
    volumes = [
        {"name": "c", "configMap": {"name": "live"}},
        {"name": "s", "secret": {"secretName": "live-keys", "defaultMode": 0o400}},
    ]
    agent.put(pod("live-pod", main, volumes=volumes))
    agent.wait_ready("live-pod")
    live = live_containers(cri, "live-pod-node")["main"]
    assert cri.run(live, "cat", "/config/text", "/secret/token") == "onefirst"
    assert "tmpfs /secret" in cri.run(live, "cat", "/proc/mounts")
    agent.put(document("ConfigMap", "live", data={"text": "two", "more": "x"}))
    eventually(lambda: cri.run(live, "cat", "/config/text") == "two")
    assert cri.run(live, "ls", "/config").split() == ["more", "text"]
    agent.put(secret("live-keys", token="second"))
    eventually(lambda: cri.run(live, "cat", "/secret/token") == "second")
    assert live_containers(cri, "live-pod-node")["main"] == live
    agent.drop("live-pod")
    agent.wait_gone("live-pod")


def test_a_projected_volume_belongs_to_the_pods_group(agent: Agent, cri: CriClient) -> None:
    agent.put(document("ConfigMap", "part", data={"a": "1"}))
    main = container(
        "main", forever(), volumeMounts=[mounted("all", "/all"), mounted("data", "/data")]
    )
    field = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    sources = [
        {"configMap": {"name": "part", "items": [{"key": "a", "path": "deep/a"}]}},
        {"secret": {"name": "none", "optional": True}},
        {"downwardAPI": {"items": [field]}},
    ]
    made = pod(
        "grouped",
        main,
        securityContext={"fsGroup": 4711},
        volumes=[
            {"name": "all", "projected": {"sources": sources, "defaultMode": 0o440}},
            {"name": "data", "emptyDir": {}},
        ],
    )
    made["metadata"]["labels"] = {"app": "x"}
    agent.put(made)
    agent.wait_ready("grouped")
    live = live_containers(cri, "grouped-node")["main"]
    assert cri.run(live, "cat", "/all/deep/a", "/all/labels") == '1app="x"'
    assert cri.run(live, "stat", "-L", "-c", "%g %a", "/all/labels") == "4711 440\n"
    assert cri.run(live, "stat", "-c", "%g %a", "/data") == "4711 2777\n"
    assert "4711" in cri.run(live, "id", "-G").split()
    agent.drop("grouped")
    agent.wait_gone("grouped")


def test_a_container_waits_for_a_missing_object_and_starts_when_it_comes(agent: Agent) -> None:
    main = container("main", forever(), envFrom=[{"secretRef": {"name": "late"}}])
    agent.put(pod("late-env", main))
    held = agent.wait(
        "late-env",
        lambda p: (
            container_status(p, "main")["state"].get("waiting", {}).get("reason")
            == "CreateContainerConfigError"
        ),
        what="held back",
    )
    waiting = container_status(held, "main")["state"]["waiting"]
    assert waiting["message"] == 'secret "late" not found'
    agent.put(secret("late", a="1"))
    agent.wait_ready("late-env")
    agent.drop("late-env")
    agent.wait_gone("late-env")


def test_a_claim_leads_to_a_directory_that_outlives_the_pod(
    agent: Agent, cri: CriClient, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    listed = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            document(
                "PersistentVolume",
                "disk",
                spec={"capacity": {"storage": "1Gi"}, "local": {"path": str(tmp_path / "disk")}},
            ),
            document("PersistentVolumeClaim", "claim", spec={"volumeName": "disk"}),
            pod(
                "claims",
                container(
                    "main", forever("touch /disk/mark"), volumeMounts=[mounted("d", "/disk")]
                ),
                volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}],
            ),
        ],
    }
    agent.put({**listed, "metadata": {"name": "claims"}})
    agent.wait_ready("claims")
    eventually((tmp_path / "disk/mark").exists)
    agent.drop("claims")
    agent.wait_gone("claims")
    assert (tmp_path / "disk/mark").exists()


def test_what_this_node_cannot_mount_is_said(agent: Agent) -> None:
    """NFS without its helper, and image volumes on a containerd that does not know them."""
    nfs = {"name": "n", "nfs": {"server": "192.0.2.1", "path": "/none"}}
    main = container("main", forever(), volumeMounts=[mounted("n", "/n")])
    agent.put(pod("nfs", main, volumes=[nfs]))
    if not any(Path(p).exists() for p in ("/sbin/mount.nfs", "/usr/sbin/mount.nfs")):
        eventually(lambda: "/sbin/mount.nfs is missing" in agent.cli("events"), what="an event")
    agent.drop("nfs")
    agent.wait_gone("nfs")
    image = {"name": "i", "image": {"reference": "registry.invalid/app:1"}}
    main = container("main", forever(), volumeMounts=[mounted("i", "/i")])
    agent.put(pod("image", main, volumes=[image]))
    agent.wait(
        "image",
        lambda p: "waiting" in container_status(p, "main")["state"],
        what="held back",
    )
    eventually(
        lambda: (
            "image volumes are not supported" in agent.cli("events")
            or "registry.invalid" in agent.cli("events")
        ),
        what="the reason",
    )
    agent.drop("image")
    agent.wait_gone("image")


def test_a_directory_that_nobody_wants_goes_at_the_next_start(make_agent: MakeAgent) -> None:
    """Last in its module: it starts an agent of its own."""
    agent = make_agent()
    agent.start()
    agent.stop()
    left = agent.root / "pods/0f-left"
    secret_volume = left / "volumes/kubernetes.io~secret/keys"
    secret_volume.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", secret_volume], check=True)
    (secret_volume / "token").touch()
    agent.start()
    eventually(lambda: not left.exists(), what="the directory gone")
    assert str(secret_volume) not in Path("/proc/mounts").read_text()
