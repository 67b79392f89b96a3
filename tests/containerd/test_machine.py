"""What the agent does to its own process, and the machine on which it refuses to start."""

from __future__ import annotations

from kubelet_trio.cgroups import cgroup_host, is_in_cgroup
from kubelet_trio.host import differences
from tests.containerd.conftest import MakeAgent
from tests.harness import Containerd, eventually


def test_the_agent_moves_itself_into_its_cgroup(
    make_agent: MakeAgent, containerd: Containerd
) -> None:
    cgroup = f"{containerd.layout.cgroup}/agent"
    agent = make_agent(config={"kubeletCgroups": cgroup})
    agent.start()
    eventually(lambda: is_in_cgroup(cgroup_host(), cgroup, agent.pid))
    agent.stop()


def test_kernel_settings_of_others_are_each_named(make_agent: MakeAgent) -> None:
    found = differences()
    agent = make_agent(config={"protectKernelDefaults": True})
    if not found:  # a machine that a kubelet has set up already
        agent.start()
        agent.stop()
        return
    ended = agent.run_again()
    assert ended.returncode == 1
    assert all(str(difference) in ended.stderr for difference in found)
    assert differences() == found
