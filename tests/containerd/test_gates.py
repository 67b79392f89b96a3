"""Alpha features of real containers that a feature gate turns on."""

from __future__ import annotations

from kubelet_trio.containers.stop_signals import api_stop_signal
from tests.containerd.conftest import MakeAgent
from tests.harness import CriClient, container, container_status, pod

ENDS_WELL = "trap 'exit 0' TERM USR1; while :; do sleep 1000 & wait $!; done"


def test_a_stop_signal_is_shown_if_the_runtime_tells_it(
    make_agent: MakeAgent, cri: CriClient
) -> None:
    agent = make_agent(config={"featureGates": {"ContainerStopSignals": True}})
    agent.start()
    main = container("main", ENDS_WELL, lifecycle={"stopSignal": "SIGUSR1"})
    agent.put(pod("signal", main, os={"name": "linux"}))
    status = container_status(agent.wait_ready("signal"), "main")
    # containerd up to 2.2 ignores stop signals of pods, and tells none.
    told = cri.container_status(status["containerID"].partition("://")[2])
    assert status.get("stopSignal", "") == api_stop_signal(told.stop_signal)
    agent.drop("signal")
    agent.wait_gone("signal")
    agent.stop()
