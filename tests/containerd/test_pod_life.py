"""A pod from its file to its end, as its manifest says."""

from __future__ import annotations

import re
from glob import iglob
from pathlib import Path

from tests.harness import (
    BUSYBOX,
    Agent,
    CriClient,
    Json,
    condition,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)

WORK: Json = {"volumes": [{"name": "work", "emptyDir": {}}]}
MOUNT = [{"name": "work", "mountPath": "/work"}]
CRI_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ (stdout|stderr) F (.*)")


def full_pod(name: str) -> Json:
    """Two init containers, a sidecar between them, two main containers."""
    wait_for_sidecar = "until grep -q sidecar /work/order; do sleep 0.05; done"
    say = "cat /work/order; echo oops >&2"
    sidecar = container(
        "proxy", forever("echo sidecar >> /work/order"), volumeMounts=MOUNT, restartPolicy="Always"
    )
    return pod(
        name,
        container("web", forever(say), volumeMounts=MOUNT),
        container("other", forever("echo other")),
        initContainers=[
            container("first", "echo first >> /work/order; echo one", volumeMounts=MOUNT),
            sidecar,
            container(
                "second", f"{wait_for_sidecar}; echo second >> /work/order", volumeMounts=MOUNT
            ),
        ],
        **WORK,
    )


def log_lines(agent: Agent, ready: Json, name: str, count: int = 0) -> list[tuple[str, str]]:
    """Return stream and text of each line of a container's log file."""
    meta = ready["metadata"]
    directory = agent.logs / f"default_{meta['name']}_{meta['uid']}" / name
    lines = (directory / f"{count}.log").read_text().splitlines()
    matches = [CRI_LINE.fullmatch(line) for line in lines]
    return [(match[1], match[2]) for match in matches if match]


def test_init_containers_sidecar_and_mains_run_in_order(agent: Agent) -> None:
    agent.put(full_pod("full"))
    ready = agent.wait_ready("full")
    eventually(lambda: ("stderr", "oops") in log_lines(agent, ready, "web"))
    lines = log_lines(agent, ready, "web")
    assert [text for stream, text in lines if stream == "stdout"] == ["first", "sidecar", "second"]
    assert log_lines(agent, ready, "first") == [("stdout", "one")]
    assert log_lines(agent, ready, "other") == [("stdout", "other")]
    agent.drop("full")
    agent.wait_gone("full")


def test_the_status_of_a_running_pod_is_complete(agent: Agent) -> None:
    agent.put(full_pod("status"))
    ready = agent.wait_ready("status")
    status = ready["status"]
    assert status["phase"] == "Running"
    assert status["qosClass"] == "BestEffort"
    assert status["startTime"]
    assert status["podIP"].startswith("10.231.")
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    assert status["hostIPs"][0]["ip"] == status["hostIP"]
    for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "PodScheduled"):
        assert condition(ready, kind) == "True", kind
    assert [c["name"] for c in status["initContainerStatuses"]] == ["first", "proxy", "second"]
    for name in ("first", "second"):
        ended = container_status(ready, name)
        assert ended["ready"] is True
        assert ended["state"]["terminated"]["reason"] == "Completed"
        assert ended["state"]["terminated"]["exitCode"] == 0
    for name in ("proxy", "web", "other"):
        running = container_status(ready, name)
        assert running["state"]["running"]["startedAt"]
        assert (running["ready"], running["started"]) == (True, True)
        assert running["restartCount"] == 0
        assert running["image"] == BUSYBOX
        assert running["containerID"].startswith("containerd://")
    agent.drop("status")
    agent.wait_gone("status")


def test_a_static_pod_is_identified_as_the_go_kubelet_does(agent: Agent) -> None:
    agent.put(pod("identity"))
    meta = agent.wait_ready("identity")["metadata"]
    assert meta["name"] == "identity-node"
    assert meta["namespace"] == "default"
    assert meta["annotations"]["kubernetes.io/config.source"] == "file"
    assert meta["annotations"]["kubernetes.io/config.hash"] == meta["uid"]
    assert meta["annotations"]["kubernetes.io/config.seen"]
    agent.drop("identity")
    agent.wait_gone("identity")


def test_an_edit_replaces_the_pod_once_the_old_one_is_gone(agent: Agent, cri: CriClient) -> None:
    agent.put(pod("edit", container("main", forever("echo before"))))
    before = agent.wait_ready("edit")
    agent.put(pod("edit", container("main", forever("echo after"))))
    uid = before["metadata"]["uid"]
    after = agent.wait("edit", lambda p: p["metadata"]["uid"] != uid and is_ready(p))
    eventually(lambda: log_lines(agent, after, "main") == [("stdout", "after")])
    assert container_status(after, "main")["restartCount"] == 0
    old = [c for c in cri.containers() if c.labels["io.kubernetes.pod.uid"] == uid]
    assert old == []
    agent.drop("edit")
    agent.wait_gone("edit")


def test_a_removed_file_brought_back_runs_again(agent: Agent) -> None:
    agent.put(pod("again"))
    first = agent.wait_ready("again")
    agent.drop("again")
    agent.wait_gone("again")
    agent.put(pod("again"))
    second = agent.wait_ready("again")
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    ids = [container_status(p, "main")["containerID"] for p in (first, second)]
    assert ids[0] != ids[1]
    agent.drop("again")
    agent.wait_gone("again")


def test_a_file_brought_back_while_its_pod_still_stops_runs_again(agent: Agent) -> None:
    slow = "trap 'sleep 1; exit 0' TERM; while :; do sleep 1000 & wait $!; done"
    agent.put(pod("hasty", container("main", slow)))
    first = agent.wait_ready("hasty")
    agent.drop("hasty")
    agent.wait("hasty", lambda p: p["metadata"].get("deletionTimestamp"), what="stopping")
    agent.put(pod("hasty", container("main", slow)))
    was = container_status(first, "main")["containerID"]
    agent.wait("hasty", lambda p: is_ready(p) and container_status(p, "main")["containerID"] != was)
    agent.drop("hasty")
    agent.wait_gone("hasty")


def test_a_broken_edit_keeps_the_pod_until_the_file_parses_again(agent: Agent) -> None:
    agent.put(pod("broken", container("main", forever("echo good"))))
    before = agent.wait_ready("broken")
    agent.put("{ this is: [not yaml", "broken.yaml")
    eventually(lambda: "broken.yaml" in str(agent.problems()), what="the agent to say so")
    assert (
        agent.pods()["broken"]["status"]["containerStatuses"]
        == (before["status"]["containerStatuses"])
    )
    agent.put(pod("broken", container("main", forever("echo better"))))
    uid = before["metadata"]["uid"]
    agent.wait("broken", lambda p: p["metadata"]["uid"] != uid and is_ready(p))
    agent.drop("broken")
    agent.wait_gone("broken")


def test_a_misspelt_field_is_refused_with_its_path(agent: Agent) -> None:
    agent.put(pod("misspelt", restartPolice="Never"))
    eventually(agent.problems, what="the agent to say so")
    (problem,) = agent.problems()
    assert "misspelt.yaml" in problem["where"]
    assert "spec.restartPolice" in problem["where"] + problem["message"]
    assert "misspelt.yaml" in agent.tail()
    assert "misspelt" not in agent.pods()
    agent.drop("misspelt")
    eventually(lambda: not agent.problems(), what="the problem to be over")


def test_a_removed_pod_leaves_nothing(agent: Agent, cri: CriClient) -> None:
    volumes = [{"name": "work", "emptyDir": {"medium": "Memory"}}]
    agent.put(
        pod(
            "trace",
            container("main", forever(), volumeMounts=MOUNT),
            container(
                "sub",
                forever(),
                volumeMounts=[{"name": "work", "mountPath": "/sub", "subPath": "a/b"}],
            ),
            volumes=volumes,
        )
    )
    uid = agent.wait_ready("trace")["metadata"]["uid"]
    assert traces(agent, cri, uid, "trace-node") >= {
        "sandbox",
        "container",
        "mount",
        "cgroup",
        "pod directory",
        "log directory",
        "log link",
        "task",
    }
    agent.drop("trace")
    agent.wait_gone("trace")
    eventually(
        lambda: not traces(agent, cri, uid, "trace-node"),
        what=f"nothing left of {traces(agent, cri, uid, 'trace-node')}",
    )


def traces(agent: Agent, cri: CriClient, uid: str, name: str) -> set[str]:
    """Return in which of the places where a pod shows, this one does."""
    cgroups = agent.containerd.layout.cgroup.lstrip("/")
    listed = {
        "sandbox": (s for s in cri.sandboxes() if s.labels["io.kubernetes.pod.uid"] == uid),
        "container": (c for c in cri.containers() if c.labels["io.kubernetes.pod.uid"] == uid),
        "mount": (line for line in Path("/proc/mounts").read_text().splitlines() if uid in line),
        # pathlib's raises where a directory goes meanwhile, as those of other tests do.
        "cgroup": iglob(f"/sys/fs/cgroup/**/{cgroups}/**/*{uid}*", recursive=True),
        "pod directory": (agent.root / "pods").glob(f"*{uid}*"),
        "log directory": agent.logs.glob(f"*{uid}*"),
        "log link": agent.log_links.glob(f"{name}_*"),
        "task": (line for line in agent.cli("tree").splitlines() if uid in line),
    }
    return {place for place, found in listed.items() if any(True for _ in found)}


def test_sidecars_stop_after_the_main_containers_in_reverse_order(agent: Agent) -> None:
    def part(name: str, **fields: object) -> Json:
        trap = f"trap 'echo {name} >> /work/order; exit 0' TERM"
        script = f"{trap}; while :; do sleep 1000 & wait $!; done"
        return container(name, script, volumeMounts=MOUNT, **fields)

    kept = agent.base / "stop-order"
    kept.mkdir()
    agent.put(
        pod(
            "sidecars",
            part("main"),
            initContainers=[
                part("outer", restartPolicy="Always"),
                part("inner", restartPolicy="Always"),
            ],
            volumes=[{"name": "work", "hostPath": {"path": str(kept)}}],
        )
    )
    agent.wait_ready("sidecars")
    agent.drop("sidecars")
    agent.wait_gone("sidecars")
    assert (kept / "order").read_text().split() == ["main", "inner", "outer"]


def test_a_container_killed_from_outside_is_started_again(agent: Agent, cri: CriClient) -> None:
    agent.put(pod("killed"))
    before = container_status(agent.wait_ready("killed"), "main")
    live = live_containers(cri, "killed-node")["main"]
    sandboxes = {
        s.id for s in cri.sandboxes() if s.labels["io.kubernetes.pod.name"] == "killed-node"
    }
    cri.kill(live)
    after = agent.wait(
        "killed", lambda p: is_ready(p) and container_status(p, "main")["restartCount"] == 1
    )
    last = container_status(after, "main")["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (137, "Error")
    assert last["containerID"] == before["containerID"]
    assert sandboxes == {
        s.id for s in cri.sandboxes() if s.labels["io.kubernetes.pod.name"] == "killed-node"
    }
    agent.drop("killed")
    agent.wait_gone("killed")


def test_a_rule_restarts_all_containers_of_a_pod_in_its_sandbox(
    agent: Agent, cri: CriClient
) -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    made = full_pod("anew")
    # The first time only: the volume stays, and what is in it.
    asks = "test -e /work/asked || { sleep 2; touch /work/asked; exit 42; }"
    made["spec"]["containers"][0] = container(
        "web",
        f"{asks}; {forever('cat /work/order')}",
        volumeMounts=MOUNT,
        restartPolicy="Never",
        restartPolicyRules=[rule],
    )
    agent.put(made)
    names = ("first", "proxy", "second", "web", "other")

    def is_anew(told: Json) -> bool:
        return is_ready(told) and all(
            container_status(told, name)["restartCount"] == 1 for name in names
        )

    ready = agent.wait("anew", is_anew)
    last = container_status(ready, "other")["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (137, "RestartingAllContainers")
    order = ["first", "sidecar", "second"] * 2
    eventually(lambda: [text for _, text in log_lines(agent, ready, "web", 1)] == order)
    assert log_lines(agent, ready, "first", 0) == [("stdout", "one")]
    uid = ready["metadata"]["uid"]
    assert len([s for s in cri.sandboxes() if s.labels["io.kubernetes.pod.uid"] == uid]) == 1
    agent.drop("anew")
    agent.wait_gone("anew")


def test_a_sandbox_that_dies_is_replaced_with_all_its_containers(
    agent: Agent, cri: CriClient
) -> None:
    agent.put(pod("sandbox"))
    before = container_status(agent.wait_ready("sandbox"), "main")["containerID"]
    uid = agent.pods()["sandbox"]["metadata"]["uid"]
    sandbox = next(s for s in cri.sandboxes() if s.labels["io.kubernetes.pod.uid"] == uid)
    cri.stop_sandbox(sandbox.id)
    agent.wait(
        "sandbox",
        lambda p: is_ready(p) and container_status(p, "main")["containerID"] != before,
    )
    ready = [
        s.metadata.attempt
        for s in cri.sandboxes()
        if s.labels["io.kubernetes.pod.uid"] == uid and s.metadata and s.state == 0
    ]
    assert ready == [1]
    agent.drop("sandbox")
    agent.wait_gone("sandbox")
