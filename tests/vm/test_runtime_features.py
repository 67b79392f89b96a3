"""What newer runtimes have: it works there, and the older one's users are told by name."""

from __future__ import annotations

import urllib.request

from tests.containerd.conftest import MakeAgent
from tests.harness import (
    BUSYBOX,
    Agent,
    CriClient,
    Json,
    container,
    eventually,
    forever,
    live_containers,
    pod,
)
from tests.harness.ports import free_port


def told(agent: Agent, pod_name: str, text: str) -> bool:
    """Whether an event or a waiting container of the pod says `text`."""
    events = (e["message"] for e in agent.ask("/events")["items"])
    statuses = agent.pods().get(pod_name, {}).get("status", {}).get("containerStatuses", ())
    waiting = (s["state"].get("waiting", {}).get("message", "") for s in statuses)
    return any(text in message for message in (*events, *waiting))


def first_ids(cri: CriClient, pod_name: str) -> tuple[int, int]:
    """Return the host's first id of a container's users, and how many ids it has."""
    mapped = cri.run(live_containers(cri, pod_name)["main"], "cat", "/proc/self/uid_map")
    inside, outside, length = (int(word) for word in mapped.split())
    assert inside == 0
    return outside, length


def test_pods_have_user_namespaces_of_their_own(
    agent: Agent, cri: CriClient, is_newer: bool
) -> None:
    script = forever("echo mine > /data/file && test $(stat -c %u /data/file) = 0 || exit 1")
    mount: Json = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    spec: Json = {"hostUsers": False, "volumes": [{"name": "data", "emptyDir": {}}]}
    pods = ("users-one", "users-two") if is_newer else ("users-one",)
    for name in pods:
        agent.put(pod(name, container("main", script, **mount), **spec))
    if not is_newer:
        text = "does not support user namespaces"
        eventually(lambda: told(agent, "users-one", text), what=text)
        agent.drop("users-one")
        return
    found = [first_ids(cri, agent.wait_ready(name)["metadata"]["name"]) for name in pods]
    assert [length for _, length in found] == [65536, 65536]
    assert all(first >= 65536 for first, _ in found)
    assert found[0] != found[1]


def test_an_image_is_a_volume(agent: Agent, cri: CriClient, is_newer: bool) -> None:
    image: Json = {"reference": BUSYBOX, "pullPolicy": "Never"}
    mounts: Json = {"volumeMounts": [{"name": "image", "mountPath": "/image"}]}
    spec: Json = {"volumes": [{"name": "image", "image": image}]}
    agent.put(pod("image", container("main", forever(), **mounts), **spec))
    if not is_newer:
        text = "image volumes are not supported by containerd 1.7"
        eventually(lambda: told(agent, "image", text), what=text)
        agent.drop("image")
        return
    name = agent.wait_ready("image")["metadata"]["name"]
    main = live_containers(cri, name)["main"]
    assert cri.run(main, "ls", "/image/bin/busybox").strip() == "/image/bin/busybox"
    assert "ro" in cri.run(main, "sh", "-c", "grep ' /image ' /proc/mounts").split()[3].split(",")


def test_the_runtimes_events_are_listened_to(make_agent: MakeAgent) -> None:
    port = free_port()
    agent = make_agent(config={"readOnlyPort": port, "address": "127.0.0.1"})
    agent.start()
    agent.put(pod("heard"))
    agent.wait_ready("heard")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        rows = answer.read().decode().splitlines()
    name = "kubelet_evented_pleg_connection_success_count"
    (value,) = [row.split()[1] for row in rows if row.startswith(f"{name} ")]
    assert float(value) == 1
