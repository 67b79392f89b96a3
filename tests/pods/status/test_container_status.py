"""Container statuses: states, reasons, what is remembered, and every other field."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from lightkube.models.core_v1 import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    VolumeMount,
)

from kubelet_trio.model import ContainerRecord, to_datetime
from kubelet_trio.pods.status.pod_status import pod_status
from kubelet_trio.pods.types import PodStage, StatusInput, WaitingReason
from tests.pods.make import (
    CREATED,
    EXITED,
    RUNNING,
    UNKNOWN,
    container,
    pod,
    record,
    runtime,
    sidecar,
)

SYNC, TERMINATING, TERMINATED = PodStage.SYNC, PodStage.TERMINATING, PodStage.TERMINATED
LOOP = WaitingReason("CrashLoopBackOff", "back-off 10s restarting failed container=web")
LOST = ContainerStateTerminated(
    exitCode=137,
    reason="ContainerStatusUnknown",
    message="The container could not be located when the pod was deleted.  "
    "The container used to be Running",
)


def status(of: Pod, *records: ContainerRecord, stage: PodStage = SYNC, **given: Any) -> PodStatus:
    return pod_status(of, runtime(*records), StatusInput(now=1000.0, stage=stage, **given))


def web(of: Pod, *records: ContainerRecord, **given: Any) -> ContainerStatus:
    (one,) = status(of, *records, **given).containerStatuses or []
    return one


def init(of: Pod, *records: ContainerRecord, **given: Any) -> ContainerStatus:
    return (status(of, *records, **given).initContainerStatuses or [])[0]


def waiting(reason: str, message: str | None = None) -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))


def before(state: ContainerState, **more: Any) -> PodStatus:
    """What was said before of `web`."""
    fields: dict[str, Any] = {"ready": True, "restartCount": 2, "image": "web:1", "imageID": ""}
    return PodStatus(containerStatuses=[ContainerStatus(name="web", state=state, **fields | more)])


WAS_RUNNING = ContainerState(running=ContainerStateRunning(startedAt=to_datetime(50)))
WAS_ENDED = ContainerState(terminated=ContainerStateTerminated(exitCode=3, reason="Error"))


def test_a_container_not_made_yet_is_being_created() -> None:
    one = web(pod())
    assert one.state == waiting("ContainerCreating")
    assert (one.name, one.image, one.imageID, one.containerID) == ("web", "web:1", "", None)
    assert (one.ready, one.started, one.restartCount) == (False, False, 0)
    assert one.lastState is None
    assert (one.resources, one.user) == (None, None)


def test_with_init_containers_the_pod_is_initializing() -> None:
    of = pod(init=["i"], ephemeral=["e"])
    made = status(of)
    for one in (
        *(made.containerStatuses or ()),
        *(made.initContainerStatuses or ()),
        *(made.ephemeralContainerStatuses or ()),
    ):
        assert one.state == waiting("PodInitializing")


def test_a_running_container() -> None:
    one = web(pod(), record("web", attempt=4, user=(1000, 2000, (3000, 4000))))
    assert one.state == ContainerState(
        running=ContainerStateRunning(
            startedAt=datetime.datetime(1970, 1, 1, 0, 2, 20, tzinfo=datetime.UTC)
        )
    )
    assert one.containerID == "containerd://web-s0-4"
    assert (one.image, one.imageID) == ("web:1", "sha256:web")
    assert (one.ready, one.started, one.restartCount) == (True, True, 4)
    assert one.user is not None
    assert one.user.linux is not None
    assert (one.user.linux.uid, one.user.linux.gid) == (1000, 2000)
    assert one.user.linux.supplementalGroups == [3000, 4000]


def test_the_runtimes_name_leads_the_container_id() -> None:
    assert web(pod(), record("web"), runtime_name="cri-o").containerID == "cri-o://web-s0-0"


def test_a_user_without_further_groups() -> None:
    one = web(pod(), record("web", user=(0, 0, ())))
    assert one.user is not None
    assert one.user.linux is not None
    assert one.user.linux.supplementalGroups is None


@pytest.mark.parametrize(
    ("code", "told", "expected"),
    [
        (0, "Completed", "Completed"),
        (1, "Error", "Error"),
        (137, "OOMKilled", "OOMKilled"),
        (128, "StartError", "StartError"),
        (0, "", "Completed"),
        (1, "", "Error"),
    ],
)
def test_an_ended_container_says_why(code: int, told: str, expected: str) -> None:
    one = web(pod(policy="Never"), record("web", EXITED, 1, code=code, reason=told))
    assert one.state == ContainerState(
        terminated=ContainerStateTerminated(
            exitCode=code,
            reason=expected,
            startedAt=to_datetime(110),
            finishedAt=to_datetime(115),
            containerID="containerd://web-s0-1",
        )
    )
    assert (one.ready, one.started) == (False, False)


@pytest.mark.parametrize(
    ("runtimes", "own", "expected"),
    [("", "", None), ("a", "", "a"), ("", "b", "b"), ("a", "b", "a: b")],
)
def test_the_termination_message_joins_the_runtimes_and_the_containers(
    runtimes: str, own: str, expected: str | None
) -> None:
    ended = record("web", EXITED, message=runtimes)
    one = web(pod(policy="Never"), ended, termination_messages={ended.id: own})
    assert one.state is not None
    assert one.state.terminated is not None
    assert one.state.terminated.message == expected


def test_termination_messages_share_twelve_kilobytes() -> None:
    of = pod("a", "b", init=["i"], policy="Never")
    records = [record(name, EXITED) for name in ("a", "b", "i")]
    texts = {r.id: "é" * 5000 for r in records}
    made = status(of, *records, termination_messages=texts)
    for one in (*(made.containerStatuses or ()), *(made.initContainerStatuses or ())):
        assert one.state is not None
        assert one.state.terminated is not None
        assert len((one.state.terminated.message or "").encode()) == 4096


def test_an_instance_that_never_started_has_no_start_time() -> None:
    one = web(pod(policy="Never"), record("web", EXITED, created=0.0, finished=0.0, code=128))
    assert one.state is not None
    assert one.state.terminated is not None
    assert one.state.terminated.startedAt is None
    assert one.state.terminated.finishedAt is None


def test_one_that_was_made_and_does_not_run_yet_waits() -> None:
    one = web(pod(), record("web", CREATED, 2))
    assert one.state == waiting("ContainerCreating")
    assert (one.restartCount, one.containerID) == (2, "containerd://web-s0-2")


# What came before.


def test_the_last_state_is_how_the_instance_before_ended() -> None:
    one = web(pod(), record("web", EXITED, 1, code=9), record("web", attempt=2))
    assert one.state is not None
    assert one.state.running is not None
    assert one.lastState is not None
    assert one.lastState.terminated is not None
    assert one.lastState.terminated.exitCode == 9
    assert one.restartCount == 2


def test_an_end_that_was_reported_becomes_the_last_state_even_if_its_record_is_gone() -> None:
    said = before(WAS_ENDED, containerID="containerd://web-s0-2")
    one = web(pod(), record("web", attempt=3), previous=said)
    assert one.lastState == WAS_ENDED


def test_a_last_state_that_was_reported_stays_while_the_instance_does() -> None:
    said = before(WAS_RUNNING, containerID="containerd://web-s0-3", lastState=WAS_ENDED)
    assert web(pod(), record("web", attempt=3), previous=said).lastState == WAS_ENDED


def test_a_last_state_stays_with_the_next_instance_if_nothing_newer_is_known() -> None:
    said = before(waiting("CrashLoopBackOff"), lastState=WAS_ENDED)
    assert web(pod(), record("web", attempt=3), previous=said).lastState == WAS_ENDED


def test_a_restart_count_never_goes_down() -> None:
    assert web(pod(), record("web", attempt=1), previous=before(WAS_ENDED)).restartCount == 2
    assert web(pod(), record("web", attempt=4), previous=before(WAS_ENDED)).restartCount == 4


def test_an_older_instance_that_still_runs_is_no_last_state() -> None:
    assert web(pod(), record("web"), record("web", attempt=1)).lastState is None


def test_a_running_container_that_is_gone_ended_in_an_unknown_way() -> None:
    one = web(pod(), previous=before(WAS_RUNNING))
    assert one.state == waiting("ContainerCreating")
    assert one.lastState == ContainerState(terminated=LOST)
    assert one.restartCount == 3


def test_of_a_deleted_pod_that_is_no_restart() -> None:
    of = pod(deleted=datetime.datetime.now(datetime.UTC))
    assert web(of, previous=before(WAS_RUNNING)).restartCount == 2


def test_a_last_state_that_is_known_is_not_overwritten_by_an_unknown_one() -> None:
    one = web(pod(), previous=before(WAS_RUNNING, lastState=WAS_ENDED))
    assert (one.lastState, one.restartCount) == (WAS_ENDED, 2)


def test_an_end_that_was_reported_stays_when_the_runtime_forgets_it() -> None:
    one = web(pod(policy="Never"), previous=before(WAS_ENDED, containerID="containerd://x"))
    assert (one.state, one.containerID, one.ready) == (WAS_ENDED, "containerd://x", False)


def test_one_that_waited_and_has_no_record_waits_on_with_its_restart_count() -> None:
    said = before(waiting("ErrImagePull"), lastState=WAS_ENDED)
    one = web(pod(), previous=said)
    assert one.state == waiting("ContainerCreating")
    assert (one.restartCount, one.lastState) == (2, WAS_ENDED)


def test_one_that_ran_and_is_in_unknown_state_now_has_ended() -> None:
    one = web(pod(), record("web", UNKNOWN, 2), previous=before(WAS_RUNNING))
    assert one.state == ContainerState(
        terminated=ContainerStateTerminated(
            exitCode=137,
            reason="ContainerStatusUnknown",
            message="The container could not be located when the pod was terminated",
        )
    )
    assert one.restartCount == 3


def test_that_end_stays_and_counts_once_while_the_state_is_unknown() -> None:
    of, unknown = pod(), record("web", UNKNOWN, 2)
    first = status(of, unknown, previous=before(WAS_RUNNING))
    assert status(of, unknown, previous=first).containerStatuses == first.containerStatuses


def test_one_in_unknown_state_that_was_never_seen_to_run_waits() -> None:
    assert web(pod(), record("web", UNKNOWN)).state == waiting("ContainerCreating")


def test_an_init_container_without_a_record_was_done_if_a_main_container_was_made() -> None:
    for state in (CREATED, RUNNING, EXITED):
        one = init(pod(init=["i"]), record("web", state))
        assert one.state is not None
        assert one.state.terminated is not None
        assert (one.state.terminated.exitCode, one.state.terminated.reason) == (0, "Completed")
        assert one.ready


def test_nothing_of_the_kind_is_said_of_sidecars_or_without_main_containers() -> None:
    assert init(pod(init=["i"]), record("web", UNKNOWN)).state == waiting("PodInitializing")
    assert init(pod(init=[sidecar("s")]), record("web")).state == waiting("PodInitializing")


# Waiting reasons.


def test_a_container_in_crash_back_off_waits_and_its_end_is_the_last_state() -> None:
    ended = record("web", EXITED, 3, code=7)
    one = web(pod(), ended, waiting={"web": LOOP})
    assert one.state == waiting(LOOP.reason, LOOP.message)
    assert one.lastState is not None
    assert one.lastState.terminated is not None
    assert one.lastState.terminated.exitCode == 7
    assert one.restartCount == 3


def test_a_container_whose_image_cannot_be_pulled_says_so() -> None:
    reason = WaitingReason("ErrImagePull")
    assert web(pod(), waiting={"web": reason}).state == waiting("ErrImagePull")


@pytest.mark.parametrize(
    ("of", "records"),
    [
        pytest.param(pod(), [record("web")], id="it runs"),
        pytest.param(pod(policy="Never"), [record("web", EXITED)], id="it may not run again"),
    ],
)
def test_a_waiting_reason_of_a_container_that_is_not_to_start_is_not_shown(
    of: Pod, records: list[ContainerRecord]
) -> None:
    one = web(of, *records, waiting={"web": LOOP})
    assert one.state is not None
    assert one.state.waiting is None


def test_waiting_reasons_are_not_shown_of_a_pod_that_is_being_ended() -> None:
    one = web(pod(), record("web", EXITED), stage=TERMINATING, waiting={"web": LOOP})
    assert one.state is not None
    assert one.state.terminated is not None


def test_an_init_container_that_is_done_does_not_wait() -> None:
    one = init(pod(init=["i"]), record("i", EXITED), waiting={"i": LOOP})
    assert one.state is not None
    assert one.state.terminated is not None


def test_a_failed_init_container_and_an_ended_sidecar_do() -> None:
    for one in (
        init(pod(init=["i"]), record("i", EXITED, code=1), waiting={"i": LOOP}),
        init(pod(init=[sidecar("i")]), record("i", EXITED), waiting={"i": LOOP}),
    ):
        assert one.state == waiting(LOOP.reason, LOOP.message)


# started, ready


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        pytest.param({}, (True, True), id="no probes"),
        pytest.param({"started": False}, (False, False), id="startup probe has not succeeded"),
        pytest.param({"started": False, "ready": True}, (False, False), id="ready counts later"),
        pytest.param({"started": True, "ready": False}, (True, False), id="not ready"),
        pytest.param({"started": True, "ready": True}, (True, True), id="ready"),
    ],
)
def test_started_and_ready_follow_the_probes(
    probes: dict[str, bool], expected: tuple[bool, bool]
) -> None:
    running = record("web")
    given = {kind: {running.id: result} for kind, result in probes.items()}
    one = web(pod(), running, **given)
    assert (one.started, one.ready) == expected


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([record("i")], (True, False)),
        ([record("i", EXITED)], (False, True)),
        ([record("i", EXITED, code=1)], (False, False)),
        ([], (False, False)),
    ],
)
def test_an_init_container_is_ready_once_it_is_done(
    records: list[ContainerRecord], expected: tuple[bool, bool]
) -> None:
    one = init(pod(init=["i"]), *records)
    assert (one.started, one.ready) == expected


def test_a_sidecar_is_ready_as_a_main_container_is() -> None:
    running = record("s")
    of = pod(init=[sidecar("s")])
    assert init(of, running).ready
    assert not init(of, running, ready={running.id: False}).ready


def test_an_ephemeral_container_is_neither_started_nor_ready() -> None:
    made = status(pod(ephemeral=["e"]), record("web"), record("e"))
    (one,) = made.ephemeralContainerStatuses or []
    assert (one.started, one.ready) == (None, False)
    assert one.state is not None
    assert one.state.running is not None


# The rest.


def test_a_mounted_image_is_told_with_its_digest() -> None:
    mounts = [VolumeMount(name=path.strip("/"), mountPath=path) for path in ("/a", "b", "/c")]
    of, running = pod(container("web", volumeMounts=mounts)), record("web", attempt=1)
    refs = {running.id: {"/a": "app@sha256:1", "/b": "app@sha256:2"}}
    shown = [
        m.volumeStatus.image.imageRef if m.volumeStatus and m.volumeStatus.image else None
        for m in web(of, running, image_refs=refs).volumeMounts or ()
    ]
    assert shown == ["app@sha256:1", "app@sha256:2", None]
    for one in (web(of, record("web"), image_refs=refs), web(of, image_refs=refs)):
        assert [m.volumeStatus for m in one.volumeMounts or ()] == [None] * 3


@pytest.mark.parametrize(
    ("told", "shown"),
    [("SIGRTMIN+3", "SIGRTMIN+3"), pytest.param("", None, id="the runtime does not tell")],
)
def test_the_stop_signal_is_shown_with_its_gate_only(told: str, shown: str | None) -> None:
    running, ended = record("web", stop_signal=told), record("web", EXITED, stop_signal=told)
    for instance in (running, ended):
        assert web(pod(), instance, stop_signals=True).stopSignal == shown
        assert web(pod(), instance).stopSignal is None
    made = status(
        pod(init=["i"], ephemeral=["e"]),
        record("i", EXITED, stop_signal=told),
        record("e", stop_signal=told),
        stop_signals=True,
    )
    (first,), (last,) = made.initContainerStatuses or [], made.ephemeralContainerStatuses or []
    assert first.stopSignal == last.stopSignal == shown
    assert web(pod(), stop_signals=True).stopSignal is None  # it was never made


def test_mounts_are_told_with_how_read_only_they_are() -> None:
    def mount(name: str, **more: Any) -> VolumeMount:
        return VolumeMount(name=name, mountPath=f"/{name}", **more)

    of = pod(
        container(
            "web",
            volumeMounts=[
                mount("rw"),
                mount("ro", readOnly=True),
                mount("rro", readOnly=True, recursiveReadOnly="IfPossible"),
                mount("off", readOnly=True, recursiveReadOnly="Disabled"),
                mount(
                    "two-way",
                    readOnly=True,
                    recursiveReadOnly="Enabled",
                    mountPropagation="Bidirectional",
                ),
            ],
        )
    )
    for records in ([], [record("web")]):
        told = {
            supported: {
                m.name: (m.mountPath, m.readOnly, m.recursiveReadOnly)
                for m in web(of, *records, recursive_read_only=supported).volumeMounts or ()
            }
            for supported in (False, True)
        }
        assert told[True] == {
            "rw": ("/rw", None, None),
            "ro": ("/ro", True, "Disabled"),
            "rro": ("/rro", True, "Enabled"),
            "off": ("/off", True, "Disabled"),
            "two-way": ("/two-way", True, "Disabled"),
        }
        assert told[False]["rro"] == ("/rro", True, "Disabled")


def test_main_containers_are_told_by_name_and_init_containers_in_order() -> None:
    of = pod("b", "a", init=["z", "y"], ephemeral=["n", "m"])
    made = status(of)
    assert [c.name for c in made.containerStatuses or ()] == ["a", "b"]
    assert [c.name for c in made.initContainerStatuses or ()] == ["z", "y"]
    assert [c.name for c in made.ephemeralContainerStatuses or ()] == ["m", "n"]


def test_lists_that_would_be_empty_are_left_out() -> None:
    made = status(pod())
    assert made.initContainerStatuses is None
    assert made.ephemeralContainerStatuses is None
    assert web(pod(), record("web")).volumeMounts is None


# A pod that is over.


def ends(made: list[ContainerStatus] | None) -> dict[str, int | None]:
    return {
        c.name: c.state.terminated.exitCode if c.state and c.state.terminated else None
        for c in made or ()
    }


def test_what_is_not_known_to_have_ended_of_an_ended_pod_ended_in_an_unknown_way() -> None:
    made = status(pod("a", "b"), record("a", EXITED), stage=TERMINATED)
    assert ends(made.containerStatuses) == {"a": 0, "b": 137}
    lost = (made.containerStatuses or [])[1]
    assert lost.state is not None
    assert lost.state.terminated is not None
    assert lost.state.terminated.reason == "ContainerStatusUnknown"
    assert (lost.ready, lost.started) == (False, False)


S = sidecar("s")


@pytest.mark.parametrize(
    ("of", "records", "inits", "mains"),
    [
        pytest.param(pod(init=["i", "j"]), [], {"i": 137, "j": None}, None, id="none was started"),
        pytest.param(
            pod(init=["i", "j"]),
            [record("i", EXITED)],
            {"i": 0, "j": None},
            None,
            id="the first was done",
        ),
        pytest.param(
            pod(init=["i", "j"]),
            [record("i", EXITED), record("j", EXITED, code=1)],
            {"i": 0, "j": 1},
            None,
            id="the last failed",
        ),
        pytest.param(
            pod(init=["i", "j"]),
            [record("i", EXITED), record("j", EXITED)],
            {"i": 0, "j": 0},
            137,
            id="all were done",
        ),
        pytest.param(
            pod(init=["i", S]),
            [record("i", EXITED), record("s", EXITED)],
            {"i": 0, "s": 0},
            None,
            id="sidecar last, ended",
        ),
        pytest.param(pod(init=["i"]), [record("web", EXITED)], {"i": 0}, 0, id="main ran"),
    ],
)
def test_only_what_was_started_is_said_to_have_ended(
    of: Pod, records: list[ContainerRecord], inits: dict[str, int | None], mains: int | None
) -> None:
    made = status(of, *records, stage=TERMINATED)
    assert ends(made.initContainerStatuses) == inits
    assert ends(made.containerStatuses) == {"web": mains}
    assert made.phase == "Failed" or (made.phase == "Succeeded" and mains == 0)


def test_a_pod_that_was_told_to_be_initialized_has_main_containers_that_ended() -> None:
    said = PodStatus(conditions=[PodCondition("True", "Initialized")])
    made = status(pod(init=[S]), record("s", EXITED), stage=TERMINATED, previous=said)
    assert ends(made.containerStatuses) == {"web": 137}
