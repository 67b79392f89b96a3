"""docs/rootless.md, done: an ordinary user's containerd and agent in a user namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kubelet_trio.host import differences
from tests.harness.images import BUSYBOX
from tests.harness.pods import Json, eventually
from tests.harness.rootless import Rootless, rootless, why_not

LEFT_OUT = "user_namespace.left_out"
GATE = "featureGates: {KubeletInUserNamespace: true}"


@pytest.fixture(scope="module")
def user() -> Iterator[Rootless]:
    if reason := why_not():
        pytest.skip(reason)
    with rootless() as made:
        made.start_agent()
        yield made


def manifest(name: str, script: str, group: int = 5000) -> Json:
    """A pod with what a namespace may forbid: a tmpfs, a group, a low OOM score, another user."""
    amounts = {"cpu": "50m", "memory": "64Mi"}
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sh", "-c", script],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"runAsUser": 1234},
        "volumeMounts": [
            {"name": "memory", "mountPath": "/m"},
            {"name": "disk", "mountPath": "/d"},
        ],
    }
    memory = {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    spec = {
        "securityContext": {"fsGroup": group},
        "containers": [container],
        "volumes": [memory, {"name": "disk", "emptyDir": {}}],
    }
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod(user: Rootless, name: str) -> Json:
    """What the agent says of a pod, as the user is told without any flag."""
    (one,) = pods(user, name)
    return one


def pods(user: Rootless, name: str) -> list[Json]:
    found: list[Json] = json.loads(user.cli("pods", "-o", "json"))["items"]
    return [item for item in found if item["metadata"]["name"].startswith(name)]


def is_ready(user: Rootless, name: str) -> bool:
    # The agent may not have read the manifest yet.
    conditions = [c for p in pods(user, name) for c in p.get("status", {}).get("conditions", [])]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def notes(user: Rootless) -> list[str]:
    lines = user.cli("status").splitlines()
    return [line for line in lines if line.startswith("Note: left out in this user namespace")]


def left_out_lines(user: Rootless) -> list[Json]:
    return [line for line in user.agent_log if line["event"] == LEFT_OUT]


@pytest.fixture(scope="module")
def web(user: Rootless) -> str:
    """The container of a pod that has become Ready."""
    user.put(manifest("web", "echo $(id -u) $(id -G) >/d/ids; cp /d/ids /m; exec sleep 3600"))
    eventually(lambda: is_ready(user, "web"), within=60)
    (status,) = pod(user, "web")["status"]["containerStatuses"]
    return str(status["containerID"])


def test_a_pod_with_volumes_becomes_ready(user: Rootless, web: str) -> None:
    assert user.cli("exec", "web", "--", "cat", "/m/ids").split() == ["1234", "0", "5000"]


def test_outside_its_root_is_the_user(user: Rootless, web: str) -> None:
    uids = {user.root.stat().st_uid, (user.root / "kubelet-trio.sock").stat().st_uid}
    assert uids == {user.home.stat().st_uid}


def test_what_is_left_out_is_one_line_and_one_note(user: Rootless, web: str) -> None:
    [note] = notes(user)
    parts = ["/dev/kmsg", "oom_score_adj -999", *[found.name for found in differences()]]
    assert [part for part in parts if part not in note] == []
    [line] = left_out_lines(user)
    assert line["level"] == "info"
    assert GATE not in note
    # Nothing of it has a line of its own.
    own = ("kernel.settings_refused", "process.oom_score_adj", "process.max_open_files")
    logged = (*own, "oom.not_watched", "cgroups.denied", "cgroups.controllers_missing")
    assert [entry["event"] for entry in user.agent_log if entry["event"] in logged] == []


def test_a_group_beyond_the_range_is_named_on_the_pod(user: Rootless) -> None:
    user.put(manifest("far", "exec sleep 3600", group=70000))
    eventually(lambda: "FailedMount" in user.cli("events"), within=60)
    told = user.cli("events")
    assert "group 70000 does not exist in this user namespace: see /etc/subgid" in told
    (user.manifests / "far.yaml").unlink()


def checks(text: str) -> dict[str, Json]:
    found: list[Json] = json.loads(text)["checks"]
    return {one["check"]: one for one in found}


def test_check_knows_where_it_runs(user: Rootless, web: str) -> None:
    config = f"--config={user.config('kubelet.yaml')}"
    flags = ("check", config, f"--root-dir={user.root}", "-o", "json")
    inside = checks(user.inside("kubelet-trio", *flags, check=False))
    assert (inside["user-namespace"]["result"], inside["runtime"]["result"]) == ("ok", "ok")
    assert inside["network"]["result"] == "ok"
    problems = {n: one["message"] for n, one in inside.items() if one["result"] == "problem"}
    assert problems == {}
    outside = checks(user.run("kubelet-trio", *flags, check=False))
    assert outside["subordinate-ids"]["message"] == "65536 users and 65536 groups"
    assert (outside["rootless-programs"]["result"], outside["root"]["result"]) == ("ok", "problem")
    assert "user-namespace" not in outside


def test_the_namespaces_root_installs_nothing(user: Rootless) -> None:
    told = user.inside("sh", "-c", "kubelet-trio install --yes 2>&1", check=False)
    assert "this is a user namespace: see docs/rootless.md" in told


def test_a_restart_of_the_agent_touches_no_container_and_the_gate_is_named_where_it_is_off(
    user: Rootless, web: str
) -> None:
    user.stop_agent()
    user.edit("kubelet.yaml", "KubeletInUserNamespace: true", "KubeletInUserNamespace: false")
    user.start_agent()
    eventually(lambda: is_ready(user, "web"), within=60)
    (status,) = pod(user, "web")["status"]["containerStatuses"]
    assert (status["containerID"], status["restartCount"]) == (web, 0)
    [note] = notes(user)
    assert GATE in note
    assert [line["level"] for line in left_out_lines(user)] == ["info", "warning"]
    user.stop_agent()
    user.edit("kubelet.yaml", "KubeletInUserNamespace: false", "KubeletInUserNamespace: true")
    user.start_agent()
