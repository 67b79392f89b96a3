"""A machine with swap: who may use how much of it, and who refuses to run there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from kubelet_trio.model import pod_key, pod_uid
from tests.agent.node import ready
from tests.containerd.conftest import MakeAgent
from tests.harness import Containerd, CriClient, Json, container, forever, live_containers, pod
from tests.harness.inside import api_pod, inside_agent
from tests.vm.test_cgroups import MI, container_cgroup, read

AREA = Path("/var/tmp/kubelet-trio.swap")  # a file system that can hold swap: not a tmpfs


@pytest.fixture(scope="module", autouse=True)
def swap() -> Iterator[None]:
    """Give the machine 512 MiB of swap."""
    with AREA.open("wb") as area:
        os.posix_fallocate(area.fileno(), 0, 512 * MI)
    AREA.chmod(0o600)
    subprocess.run(["mkswap", AREA], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["swapon", AREA], check=True)
    yield
    subprocess.run(["swapoff", AREA], check=True)
    AREA.unlink()


def swap_max(cri: CriClient, pod_name: str) -> str:
    return read(container_cgroup(cri, live_containers(cri, pod_name)["main"]), "memory.swap.max")


def test_static_pods_have_no_swap_even_under_limited_swap(
    make_agent: MakeAgent, cri: CriClient
) -> None:
    agent = make_agent(config={"memorySwap": {"swapBehavior": "LimitedSwap"}})
    agent.start()
    sizes: dict[str, Json] = {
        # Had it been an API server's, it would have its share: static pods are critical.
        "burstable": {"requests": {"memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "guaranteed": {"limits": {"cpu": "100m", "memory": "64Mi"}},
        "besteffort": {},
    }
    for name, resources in sizes.items():
        agent.put(pod(name, container("main", forever(), resources=resources)))
    names = {name: agent.wait_ready(name)["metadata"]["name"] for name in sizes}
    assert {name: swap_max(cri, names[name]) for name in sizes} == dict.fromkeys(sizes, "0")


async def test_a_burstable_pod_has_its_memorys_share_of_the_swap(
    containerd: Containerd, cri: CriClient, tmp_path: Path
) -> None:
    agent, feed = inside_agent(
        containerd, tmp_path, {"memorySwap": {"swapBehavior": "LimitedSwap"}}
    )
    asked: Json = {"requests": {"memory": "256Mi"}, "limits": {"memory": "512Mi"}}
    burstable = api_pod(pod("share", container("main", forever(), resources=asked)))
    feed.put(burstable)
    kibibytes = {
        name: int(rest.split()[0])
        for name, _, rest in (
            line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines()
        )
    }
    share = 256 * MI * kibibytes["SwapTotal"] // kibibytes["MemTotal"]

    def is_ready() -> bool:
        known = agent.pods.value.get(pod_uid(burstable))
        return known is not None and known.status is not None and ready(known.status)

    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            while not is_ready():  # noqa: ASYNC110  # the test needs no other bell
                await trio.sleep(0.1)
            given = int(await trio.to_thread.run_sync(swap_max, cri, pod_key(burstable).name))
            await agent.remove_pods()
            nursery.cancel_scope.cancel()
    # The kernel counts in whole pages.
    assert 0 <= share - given < os.sysconf("SC_PAGESIZE")
    assert given > 0


def test_without_a_word_about_swap_no_pod_may_use_it(make_agent: MakeAgent, cri: CriClient) -> None:
    agent = make_agent()
    agent.start()
    own: Json = {"requests": {"memory": "256Mi"}, "limits": {"memory": "512Mi"}}
    agent.put(pod("plain", container("main", forever(), resources=own)))
    assert swap_max(cri, agent.wait_ready("plain")["metadata"]["name"]) == "0"


def test_an_agent_that_is_to_fail_on_swap_says_which_area(make_agent: MakeAgent) -> None:
    agent = make_agent(config={"failSwapOn": True})
    ended = agent.run_again()
    assert ended.returncode != 0
    assert str(AREA) in ended.stderr
