"""What pods hold: taken at once or not at all, kept until they have ended, never twice."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from lightkube.models.core_v1 import Pod

from kubelet_trio.managers import (
    CheckpointKeeper,
    ContainerShare,
    ManagerSettings,
    ResourceManagers,
    load_managers,
)
from kubelet_trio.model import ContainerId, Meter, PodUid, inline_offload, parse_cpus, pod_uid
from tests.managers.node.machines import static, two_nodes
from tests.managers.pods import container, pod

MACHINE = two_nodes()


def make(root: Path, settings: ManagerSettings, meter: Meter | None = None) -> ResourceManagers:
    loaded = load_managers(settings, root, lambda: MACHINE)
    assert loaded is not None
    return ResourceManagers(loaded, CheckpointKeeper(root, inline_offload), meter or Meter())


def guaranteed(uid: str, cpus: str = "2", memory: str = "1Gi") -> Pod:
    return pod(container("web", cpus, memory=memory), uid=uid)


def cpus(managers: ResourceManagers, uid: str, name: str = "web") -> str:
    return managers.share(PodUid(uid), name).cpuset_cpus


def test_a_refusal_takes_nothing(tmp_path: Path) -> None:
    meter = Meter()
    managers = make(tmp_path, static(memory=True, topology="single-numa-node"), meter)
    before = cpus(managers, "any")
    version = managers.keeper.version
    refusal = managers.admit(guaranteed("a", "10"))
    assert refusal is not None
    assert refusal.reason == "TopologyAffinityError"
    assert cpus(managers, "any") == before
    assert not managers.holds(PodUid("a"))
    assert managers.keeper.version == version
    assert dict(meter.counters("kubelet_topology_manager_admission_errors_total")) == {(): 1}


def test_memory_of_an_ended_init_container_is_not_taken_again_after_a_restart(
    tmp_path: Path,
) -> None:
    settings = static(memory=True)
    managers = make(tmp_path, settings)
    web, first = container("web", "1", memory="1Gi"), container("first", "1", memory="1Gi")
    one = pod(web, init=[first], uid="a")
    assert managers.admit(one) is None
    share = managers.share(PodUid("a"), "web")
    managers.note_started(one, web, ContainerId("c"), share)
    before = managers.state("memory")
    assert managers.holds(PodUid("a"))
    for name, file in (("cpu", "cpu_manager_state"), ("memory", "memory_manager_state")):
        provider = managers.provider(name)
        assert provider is not None
        (tmp_path / file).write_bytes(provider.encode(managers.state(name)))
    managers = make(tmp_path, settings)
    managers.adopt(one)
    assert managers.state("memory").nodes == before.nodes
    assert managers.state("memory").blocks == before.blocks


def test_a_pod_that_is_asked_about_again_keeps_what_it_has(tmp_path: Path) -> None:
    managers = make(tmp_path, static())
    assert managers.admit(guaranteed("a")) is None
    first = cpus(managers, "a")
    version = managers.keeper.version
    assert managers.admit(guaranteed("a")) is None
    managers.adopt(guaranteed("a"))
    assert cpus(managers, "a") == first
    assert managers.keeper.version == version


def test_what_is_released_is_shared_again(tmp_path: Path) -> None:
    managers = make(tmp_path, static(memory=True))
    whole = cpus(managers, "x")
    for uid in ("a", "b"):
        assert managers.admit(guaranteed(uid)) is None
    managers.retain({PodUid("b")})
    assert not managers.holds(PodUid("a"))
    assert managers.holds(PodUid("b"))
    managers.retain(())
    assert cpus(managers, "x") == whole


def test_what_would_be_refused_changes_nothing(tmp_path: Path) -> None:
    managers = make(tmp_path, static())
    assert managers.admit(guaranteed("a", "12")) is None
    large = guaranteed("b", "8")
    assert managers.would_refuse(large, ()) is not None
    assert managers.would_refuse(large, [PodUid("a")]) is None
    assert cpus(managers, "a").count("-")  # still its own
    assert not managers.holds(PodUid("b"))


def test_a_pod_that_is_rejected_anyway_counts_and_holds_nothing(tmp_path: Path) -> None:
    meter = Meter()
    managers = make(tmp_path, static(memory=True), meter)
    too_large = guaranteed("a", "1", memory="1000Gi")
    assert managers.would_refuse(too_large, ()) is not None
    names = [f"kubelet_memory_manager_pinning_{n}_total" for n in ("requests", "errors")]
    assert [dict(meter.counters(n)).get((), 0) for n in names] == [0, 0]
    assert managers.would_refuse(too_large, (), counts=True) is not None
    assert [dict(meter.counters(n))[()] for n in names] == [1, 1]
    assert managers.would_refuse(guaranteed("b"), (), counts=True) is None
    assert [dict(meter.counters(n))[()] for n in names] == [2, 1]
    assert not managers.holds(PodUid("b"))


def test_a_successor_takes_what_its_predecessor_has(tmp_path: Path) -> None:
    managers = make(tmp_path, static())
    assert managers.admit(guaranteed("a", "12")) is None
    old = ContainerId("old")
    managers.note_started(
        guaranteed("a"), container("web", "12"), old, managers.share(PodUid("a"), "web")
    )
    assert managers.admit(guaranteed("b", "12")) is not None
    assert managers.admit(guaranteed("c", "12"), [PodUid("a")]) is None
    # It still ends, on the CPUs that it had: they are not taken from it now.
    assert managers.cpuset_due(PodUid("a"), "web", old) == ""
    managers.retain({PodUid("c")})
    assert managers.holds(PodUid("c"))


def test_a_running_pod_without_a_share_gets_one(tmp_path: Path) -> None:
    managers = make(tmp_path, static())
    managers.adopt(guaranteed("a"))
    assert managers.holds(PodUid("a"))
    managers.adopt(guaranteed("b", "40"))  # too large: it goes on in the shared pool
    assert not managers.holds(PodUid("b"))


def test_init_containers_give_their_memory_back_when_the_next_one_runs(tmp_path: Path) -> None:
    managers = make(tmp_path, static(memory=True))
    init, web = container("init", "1", memory="4Gi"), container("web", "1", memory="1Gi")
    one = pod(web, init=[init], uid="a")
    assert managers.admit(one) is None
    assert managers.share(PodUid("a"), "init").cpuset_mems == "0"
    managers.note_started(one, web, ContainerId("c"), ContainerShare())
    assert managers.share(PodUid("a"), "init").cpuset_mems == ""
    assert managers.share(PodUid("a"), "web").cpuset_mems == "0"


def test_only_the_pod_with_exclusive_cpus_has_no_quota(tmp_path: Path) -> None:
    managers = make(tmp_path, static())
    mixed = pod(container("web", "2"), container("side", "500m"), uid="a")
    assert managers.admit(mixed) is None
    assert managers.has_no_quota(mixed)
    assert managers.share(PodUid("a"), "web").no_quota
    assert not managers.share(PodUid("a"), "side").no_quota
    assert not managers.has_no_quota(guaranteed("b"))


def test_the_metrics_are_those_of_the_go_kubelet(tmp_path: Path) -> None:
    meter = Meter()
    managers = make(tmp_path, static(memory=True, options={"full-pcpus-only": True}), meter)
    assert managers.admit(guaranteed("a", "2")) is None
    assert managers.admit(guaranteed("b", "3")) is not None
    counters = {
        name: dict(meter.counters(f"kubelet_{name}"))
        for name in (
            "cpu_manager_pinning_requests_total",
            "cpu_manager_pinning_errors_total",
            "memory_manager_pinning_requests_total",
            "container_aligned_compute_resources_count",
            "container_aligned_compute_resources_failure_count",
        )
    }
    assert counters == {
        "cpu_manager_pinning_requests_total": {(): 2},
        "cpu_manager_pinning_errors_total": {(): 1},
        "memory_manager_pinning_requests_total": {(): 1},
        "container_aligned_compute_resources_count": {
            ("container", "physical_cpu"): 1,
            ("container", "uncore_cache"): 1,
        },
        "container_aligned_compute_resources_failure_count": {("container", "physical_cpu"): 1},
    }
    gauges = {
        name: dict(meter.gauges(f"kubelet_cpu_manager_{name}"))
        for name in (
            "shared_pool_size_millicores",
            "exclusive_cpu_allocation_count",
            "allocation_per_numa",
        )
    }
    assert gauges == {
        "shared_pool_size_millicores": {(): 13_000},
        "exclusive_cpu_allocation_count": {(): 2},
        "allocation_per_numa": {("0",): 2, ("1",): 0},
    }


def test_memory_that_is_not_there_is_counted_as_an_error(tmp_path: Path) -> None:
    meter = Meter()
    managers = make(tmp_path, static(memory=True), meter)
    refusal = managers.admit(guaranteed("a", "1", "40Gi"))
    assert refusal is not None
    assert refusal.reason == "UnexpectedAdmissionError"
    assert dict(meter.counters("kubelet_memory_manager_pinning_errors_total")) == {(): 1}


class HoldingsMachine(RuleBasedStateMachine):
    """Pods come, go and are replaced, and the agent starts again in between."""

    directory: Path
    settings = static(memory=True, topology="restricted")

    def __init__(self) -> None:
        super().__init__()
        self.managers = make(self.directory, self.settings)
        self.pods: dict[PodUid, Pod] = {}
        self.count = 0

    @rule(cpus=st.sampled_from(["500m", "1", "2", "5"]), memory=st.sampled_from(["1Gi", "6Gi"]))
    def come(self, cpus: str, memory: str) -> None:
        self.count += 1
        new = guaranteed(f"pod-{self.count}", cpus, memory)
        if self.managers.admit(new) is None:
            self.pods[pod_uid(new)] = new

    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        if self.pods:
            del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
            self.managers.retain(self.pods.keys())

    @rule()
    def restart(self) -> None:
        before = {uid: self.managers.share(uid, "web") for uid in self.pods}
        for name, file in (("cpu", "cpu_manager_state"), ("memory", "memory_manager_state")):
            provider = self.managers.provider(name)
            assert provider is not None
            (self.directory / file).write_bytes(provider.encode(self.managers.state(name)))
        self.managers = make(self.directory, self.settings)
        assert {uid: self.managers.share(uid, "web") for uid in self.pods} == before
        for one in self.pods.values():
            self.managers.adopt(one)
        assert {uid: self.managers.share(uid, "web") for uid in self.pods} == before

    @invariant()
    def no_cpu_has_two_owners(self) -> None:
        shared = parse_cpus(cpus(self.managers, "nobody"))
        assert 0 in shared  # reserved
        taken = set(shared)
        for uid in self.pods:
            share = self.managers.share(uid, "web")
            if share.no_quota:
                own = parse_cpus(share.cpuset_cpus)
                assert not own & taken
                taken |= own
        assert taken == {cpu.id for cpu in MACHINE.cpus}

    def teardown(self) -> None:
        for file in ("cpu_manager_state", "memory_manager_state"):
            (self.directory / file).unlink(missing_ok=True)


def test_no_cpu_is_given_twice_whatever_comes_and_goes(tmp_path: Path) -> None:
    class Here(HoldingsMachine):
        directory = tmp_path

    run_state_machine_as_test(
        Here, settings=hypothesis_settings(max_examples=40, stateful_step_count=25)
    )
