"""Devices that static pods claim on a node without an API server, on a real runtime."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from kubelet_trio.kube import to_json
from kubelet_trio.testing.dra import FakeDraDriver, resource_slice
from tests.containerd.claims import DEVICE_NODE, claim_spec, claiming, granted, lacks_node
from tests.containerd.conftest import MakeAgent
from tests.harness import Agent, Containerd, CriClient, Json, eventually
from tests.harness.csi_documents import put_documents
from tests.harness.dra_services import OURS, run_dra_driver
from tests.harness.pods import NODE

DRIVER = "local.example.com"
GROUP = "resource.k8s.io/v1"


@contextmanager
def driving(driver: FakeDraDriver, agent: Agent) -> Iterator[None]:
    """Run a driver at an agent's sockets, in a thread of its own, for the length of a block."""
    scope, tokens = trio.CancelScope(), list[trio.lowlevel.TrioToken]()
    is_up = threading.Event()

    async def live() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        with scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(run_dra_driver, driver, agent.root, OURS)
                is_up.set()

    thread = threading.Thread(target=trio.run, args=(live,))
    thread.start()
    try:
        assert is_up.wait(30)
        yield
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=tokens[0])
        thread.join()


def put_slice(agent: Agent, driver: FakeDraDriver) -> None:
    """Hand the node a driver's slice as drivers do: by a file, renamed into place."""
    directory = agent.root / "plugins" / DRIVER / "resourceslices"
    directory.mkdir(parents=True, exist_ok=True)
    made: Json = {
        "apiVersion": GROUP,
        "kind": "ResourceSlice",
        **to_json(resource_slice(driver, NODE)),
    }
    (directory / ".new").write_text(json.dumps(made))
    (directory / ".new").rename(directory / "slice.json")


def test_static_pods_claim_devices_and_wait_for_them(
    make_agent: MakeAgent, containerd: Containerd, cri: CriClient
) -> None:
    agent = make_agent()
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    put_documents(
        agent,
        {
            "apiVersion": GROUP,
            "kind": "DeviceClass",
            "metadata": {"name": DRIVER},
            "spec": {"selectors": [selector]},
        },
        {
            "apiVersion": GROUP,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one"},
            "spec": {"spec": claim_spec(DRIVER)},
        },
        file="classes",
    )
    agent.start()
    driver = FakeDraDriver(
        DRIVER,
        ("a",),
        pool=NODE,
        cdi_dir=containerd.cdi_dir,
        nodes={DEVICE_NODE: "/dev/null"},
    )
    put_slice(agent, driver)
    with driving(driver, agent):
        agent.put(claiming("first", template="one"))
        running = agent.wait_ready("first")
        (told,) = running["status"]["resourceClaimStatuses"]
        assert [c.name for c in driver.rules.prepared.values()] == [told["resourceClaimName"]]
        if containerd.cdi_dir is None:
            print("not looked into the container: containerd has no CDI before 1.7")
        else:
            assert granted(cri, f"first-{NODE}") == ["a"]
            assert not lacks_node(cri, f"first-{NODE}")
        agent.put(claiming("second", template="one"))
        eventually(
            lambda: "1 of class local.example.com wanted, 0 free" in agent.cli("events"),
            what="the second pod says what it waits for",
        )
        # A new agent knows who has the device.
        agent.kill()
        agent.start()
        agent.wait_ready("first")
        assert [c.name for c in driver.rules.prepared.values()] == [told["resourceClaimName"]]
        agent.drop("first")
        agent.wait_ready("second", 120)
        agent.drop("second")
        agent.wait_gone("second")
        eventually(lambda: not driver.rules.prepared, what="nothing is prepared")
        driver.rules.check()
