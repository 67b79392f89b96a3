"""Crash back-off within a plan: who waits, for how long, and what it says."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import ResourceRequirements

from kubelet_trio.model import ContainerRecord
from kubelet_trio.pods.plan.backoff import BackOffEntry, BackOffPolicy
from kubelet_trio.pods.plan.pod_plan import PodPlan
from kubelet_trio.pods.plan.starts import crash_key
from kubelet_trio.pods.types import WaitingReason
from tests.pods.make import (
    CREATED,
    EXITED,
    container,
    planned,
    pod,
    record,
    runtime,
    sandbox,
    sidecar,
)

POD = pod()
KEY = crash_key(POD, "web", {})


def plan(
    *records: ContainerRecord, now: float, entry: BackOffEntry | None = None, **policy: float | bool
) -> PodPlan:
    crash = {} if entry is None else {KEY: entry}
    return planned(
        POD,
        runtime(*records),
        now=now,
        crash=crash,
        policy=BackOffPolicy(**policy),  # type: ignore[arg-type]
    )


def test_the_first_restart_comes_at_once_and_leaves_an_entry_of_the_base() -> None:
    made = plan(record("web", EXITED, finished=105.0, code=1), now=105.0)
    (start,) = made.start
    assert start.back_off == (KEY, BackOffEntry(10.0, 105.0))
    assert made.retry_at is None


def test_a_first_start_leaves_no_entry() -> None:
    (start,) = plan(now=100.0).start
    assert start.back_off is None


def test_a_restart_within_the_back_off_waits_and_says_for_how_long() -> None:
    ended = record("web", EXITED, 4, finished=1000.0, code=1)
    made = plan(ended, now=1001.0, entry=BackOffEntry(80.0, 990.0))
    assert not made.start
    assert not made.finished
    assert made.is_noop
    assert made.retry_at == 1080.0
    assert made.waiting == {
        "web": WaitingReason(
            "CrashLoopBackOff",
            "back-off 1m20s restarting failed container=web pod=p_ns(uid-1)",
        )
    }


def test_the_restart_after_the_back_off_doubles_it() -> None:
    ended = record("web", EXITED, 4, finished=1000.0)
    (start,) = plan(ended, now=1080.0, entry=BackOffEntry(80.0, 990.0)).start
    assert start.back_off == (KEY, BackOffEntry(160.0, 1080.0))


def test_a_new_entry_is_of_the_policy_that_is_given() -> None:
    policy = BackOffPolicy(base=1.0)
    made = planned(POD, runtime(record("web", EXITED)), now=105.0, policy=policy)
    assert made.start[0].back_off == (KEY, BackOffEntry(1.0, 105.0))


def test_a_container_whose_definition_changed_is_replaced_without_delay() -> None:
    ended, running = (
        record("web", EXITED, 1, finished=995.0, hash="a"),
        record("web", attempt=2, hash="a"),
    )
    made = planned(
        POD,
        runtime(ended, running),
        now=1000.0,
        crash={crash_key(POD, "web", {"web": 0xA}): BackOffEntry(300.0, 990.0)},
        hashes={"web": 0xB},
    )
    (start,) = made.start
    assert start.back_off is None


def test_a_failed_probe_waits_as_a_crash_does() -> None:
    """As upstream: by the end of the instance before, while the one to be killed still runs."""
    ended, running = record("web", EXITED, 1, finished=995.0), record("web", attempt=2)
    unhealthy = {running.id: "failed liveness probe"}
    made = planned(
        POD,
        runtime(ended, running),
        now=1000.0,
        crash={KEY: BackOffEntry(80.0, 990.0)},
        unhealthy=unhealthy,
    )
    assert [stop.id for stop in made.stop_containers] == [running.id]
    assert not made.start
    assert made.waiting["web"].reason == "CrashLoopBackOff"
    assert made.retry_at == 1075.0
    again = planned(
        POD,
        runtime(ended, running),
        now=1075.0,
        crash={KEY: BackOffEntry(80.0, 990.0)},
        unhealthy=unhealthy,
    )
    (start,) = again.start
    assert start.back_off == (KEY, BackOffEntry(160.0, 1075.0))


def test_the_first_failed_probe_restarts_at_once() -> None:
    running = record("web")
    made = planned(POD, runtime(running), now=1000.0, unhealthy={running.id: "failed probe"})
    (start,) = made.start
    assert start.back_off is None


def test_another_definition_has_a_back_off_of_its_own() -> None:
    hashes = {"web": 0xB}
    ended = record("web", EXITED, 5, finished=1000.0, hash="a")
    made = planned(POD, runtime(ended), now=1000.0, hashes=hashes)
    (start,) = made.start
    assert start.back_off is None


def test_one_that_was_made_and_never_ran_waits_for_the_crash_before_it() -> None:
    ended, stuck = record("web", EXITED, 1, finished=1000.0), record("web", CREATED, 2)
    made = plan(ended, stuck, now=1005.0, entry=BackOffEntry(10.0, 990.0))
    assert made.retry_at == 1010.0
    assert made.is_noop


def test_init_containers_and_sidecars_wait_as_well() -> None:
    of = pod("web", init=[sidecar("s"), "i"])
    s, i = record("s", EXITED, finished=1000.0), record("i", EXITED, finished=1000.0, code=1)
    crash = {crash_key(of, name, {}): BackOffEntry(10.0, 999.0) for name in ("s", "i")}
    made = planned(of, runtime(s, i), now=1001.0, crash=crash)
    assert set(made.waiting) == {"s", "i"}
    assert made.retry_at == 1010.0


# After a restart of the agent nothing is remembered.


def test_a_forgotten_back_off_is_told_from_the_runtimes_records() -> None:
    made = plan(record("web", EXITED, 3, created=990.0, finished=1000.0), now=1001.0)
    assert made.retry_at == 1040.0
    assert "back-off 40s" in made.waiting["web"].message


def test_the_restart_after_a_retold_back_off_goes_on_doubling() -> None:
    made = plan(record("web", EXITED, 3, created=990.0, finished=1000.0), now=1040.0)
    (start,) = made.start
    assert start.back_off == (KEY, BackOffEntry(80.0, 1040.0))


def test_a_container_that_ran_for_long_is_not_delayed_after_a_restart_of_the_agent() -> None:
    made = plan(record("web", EXITED, 9, created=100.0, finished=1000.0), now=1000.0)
    assert made.start[0].back_off == (KEY, BackOffEntry(10.0, 1000.0))


@pytest.mark.parametrize(
    ("before", "delay"),
    [
        pytest.param({}, 160, id="crashed soon"),
        pytest.param({"finished": 900.0}, 10, id="had run for long"),
        pytest.param({"hash": "b"}, None, id="was another definition"),
        pytest.param({"sandbox": "old"}, None, id="was in another sandbox"),
    ],
)
def test_the_instance_before_tells_where_the_row_of_crashes_began(
    before: dict[str, object], delay: float | None
) -> None:
    last = record("web", EXITED, 5, created=990.0, finished=1000.0, hash="a")
    first = record("web", EXITED, 4, **{"created": 100.0, "finished": 101.0, "hash": "a"} | before)  # type: ignore[arg-type]
    made = planned(POD, runtime(first, last), now=1001.0, hashes={"web": 0xA})
    assert made.retry_at == (None if delay is None else 1000.0 + delay)


def test_nothing_is_told_again_if_that_is_turned_off() -> None:
    made = plan(record("web", EXITED, 3, created=990.0, finished=1000.0), now=1001.0, seed=False)
    assert made.start


def test_a_container_that_went_down_with_its_sandbox_did_not_crash() -> None:
    observed = runtime(
        record("web", EXITED, 5, created=990.0, finished=1000.0),
        sandboxes=[sandbox(0, ready=False)],
    )
    made = planned(POD, observed, now=1000.0)
    assert made.create_sandbox
    assert made.start


def test_a_back_off_that_is_remembered_holds_in_a_new_sandbox_too() -> None:
    observed = runtime(
        record("web", EXITED, 5, finished=1000.0), sandboxes=[sandbox(0, ready=False)]
    )
    made = planned(POD, observed, now=1001.0, crash={KEY: BackOffEntry(10.0, 999.0)})
    assert made.create_sandbox
    assert not made.start
    assert made.retry_at == 1010.0


# Clean exits spared.


def test_a_spared_clean_exit_restarts_at_once_and_leaves_no_entry() -> None:
    ended = record("web", EXITED, 7, created=980.0, finished=1000.0)
    made = plan(ended, now=1000.0, entry=BackOffEntry(300.0, 990.0), spare_clean_exits=True)
    assert made.start[0].back_off is None


def test_a_spared_container_starts_at_most_once_a_base_period() -> None:
    ended = record("web", EXITED, 7, created=998.0, finished=1000.0)
    made = plan(ended, now=1000.0, spare_clean_exits=True)
    assert made.retry_at == 1008.0
    assert "back-off 10s" in made.waiting["web"].message
    assert plan(ended, now=1008.0, spare_clean_exits=True).start


def test_a_wall_clock_set_back_does_not_hold_a_spared_container() -> None:
    ended = record("web", EXITED, 7, created=5000.0)
    assert plan(ended, now=1000.0, spare_clean_exits=True).start


def test_a_failure_is_not_spared() -> None:
    ended = record("web", EXITED, 1, created=990.0, finished=1000.0, code=1)
    assert plan(ended, now=1000.0, spare_clean_exits=True).retry_at == 1010.0


def test_keys_tell_pods_containers_and_definitions_apart() -> None:
    other = pod(container("other"))
    keys = {
        crash_key(POD, "web", {}),
        crash_key(POD, "web", {"web": 1}),
        crash_key(other, "other", {}),
    }
    assert len(keys) == 3
    assert all(key[0] == "uid-1" for key in keys)


def test_other_resources_begin_the_back_off_anew() -> None:
    ended = record("web", EXITED, 4, finished=1000.0, code=137)
    before = container("web", resources=ResourceRequirements(limits={"memory": "64Mi"}))
    after = container("web", resources=ResourceRequirements(limits={"memory": "128Mi"}))
    crash = {crash_key(pod(before), "web", {}): BackOffEntry(80.0, 990.0)}
    held = planned(pod(before), runtime(ended), now=1001.0, crash=crash)
    assert "web" in held.waiting
    (start,) = planned(pod(after), runtime(ended), now=1001.0, crash=crash).start
    assert start.back_off is not None
    assert start.back_off[1] == BackOffEntry(10.0, 1001.0)
