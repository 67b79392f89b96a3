"""Two faults at once WHILE a pod with a CSI volume goes, on containerd with a real driver.

`goes` and `stays` share a volume. One fault is the driver's; the other the runtime's, or the end of
the agent. `goes` is deleted while both hold, and `comes` is wanted; `stays` must not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from kubelet_trio.testing.csi import CsiFaultKind, calls
from tests.faults.bed import Bed
from tests.harness import Containerd, eventually, missing
from tests.harness.csi import CsiDriver
from tests.harness.csi_documents import claimed, put_documents, volume_documents
from tests.harness.hang import hang, resume

GOES, STAYS, COMES = "goes", "stays", "comes"
SHARED, OTHER = "shared", "other"  # volumes; only `comes` has the second
AFTER = 300.0  # a back-off of 122 s, and a mount that began before


@dataclass
class Trial:
    """An agent with a driver."""

    bed: Bed
    driver: CsiDriver
    containerd: Containerd

    def put(self, name: str, volume: str) -> None:
        manifest = self.bed.pod(name)
        (main,) = manifest["spec"]["containers"]
        main["volumeMounts"] = [{"name": "v", "mountPath": "/data"}]
        manifest["spec"]["volumes"] = [claimed(volume)]
        self.bed.agent.put(manifest)


def _unpublish_fails(trial: Trial) -> None:
    trial.driver.fault(CsiFaultKind.ERROR, calls.UNPUBLISH, times=None, status="INTERNAL")


def _publish_hangs(trial: Trial) -> None:
    trial.driver.fault(CsiFaultKind.HANG, calls.PUBLISH, times=None)


def _replies_are_lost(trial: Trial) -> None:
    trial.driver.fault(CsiFaultKind.LOST_REPLY, times=None)


def _driver_dies(trial: Trial) -> None:
    trial.driver.kill()


def _agent_dies(trial: Trial) -> None:
    trial.bed.agent.kill()
    trial.bed.agent.start()


def _runtime_hangs(trial: Trial) -> None:
    hang(trial.containerd.pid)
    try:
        told = partial(trial.bed.agent.healthz, "/readyz")
        eventually(lambda: told()[0] != 200, what="the agent finds that the runtime hangs")
    finally:
        resume(trial.containerd.pid)


def _runtime_restarts(trial: Trial) -> None:
    trial.containerd.stop()
    trial.containerd.start()


Fault = Callable[[Trial], None]
DRIVERS: dict[str, Fault] = {
    "unpublish fails": _unpublish_fails,
    "publish hangs": _publish_hangs,
    "replies are lost": _replies_are_lost,
    "driver dies": _driver_dies,
}
OTHERS: dict[str, Fault] = {
    "agent dies": _agent_dies,
    "runtime hangs": _runtime_hangs,
    "runtime restarts": _runtime_restarts,
}


@pytest.fixture
def trial(request: pytest.FixtureRequest, brief_path: Path) -> Iterator[Trial]:
    if lacks := missing():
        pytest.skip(f"no real containers here: {', '.join(lacks)}")
    containerd: Containerd = request.getfixturevalue("containerd")
    bed = Bed(brief_path / "bed", containerd)
    for name in (SHARED, OTHER):
        put_documents(bed.agent, *volume_documents(name), file=f"volume-{name}")
    bed.agent.start()
    with CsiDriver(brief_path / "driver", bed.agent.root) as driver:
        try:
            yield Trial(bed, driver, containerd)
        finally:
            bed.close()


@pytest.mark.parametrize(
    ("of_driver", "other"),
    list(product(DRIVERS, OTHERS)),
    ids=[" and ".join(pair) for pair in product(DRIVERS, OTHERS)],
)
def test_a_pod_with_a_volume_goes_another_stays_and_one_comes(
    trial: Trial, of_driver: str, other: str
) -> None:
    bed, driver = trial.bed, trial.driver
    for name in (GOES, STAYS):
        trial.put(name, SHARED)
    for name in (GOES, STAYS):
        bed.agent.wait_ready(name)
    stays = bed.pid_of(STAYS)
    DRIVERS[of_driver](trial)
    bed.agent.drop(GOES)
    trial.put(COMES, OTHER)
    OTHERS[other](trial)
    assert bed.pid_of(STAYS) == stays
    if driver.is_running:
        driver.clear_faults()
    else:
        driver.start()
    bed.agent.wait_gone(GOES, AFTER)
    bed.agent.wait_ready(COMES, AFTER)
    assert bed.pid_of(STAYS) == stays
    driver.check()
    for name in (STAYS, COMES):
        bed.agent.drop(name)
        bed.agent.wait_gone(name, AFTER)
    driver.wait_clean(AFTER)
