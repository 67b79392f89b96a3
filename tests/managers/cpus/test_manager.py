"""The static policy gives whole CPUs to containers of Guaranteed pods that ask for them."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.managers import ANYWHERE, Hint, Machine, Manager, Refusal, mask_of
from kubelet_trio.managers.cpus import (
    NO_OPTIONS,
    CpuConfigError,
    CpuManager,
    CpuOptions,
    CpuState,
    cpusets,
    exclusive_cpus,
    format_mask,
    has_exclusive,
    parse_mask,
    pod_exclusive_cpus,
    reserve_cpus,
)
from kubelet_trio.model import PodUid
from tests.managers.cpus import machines as m
from tests.managers.pods import container, pod, sidecar

ALL_OF_PHI = parse_mask("0-287")
FULL_CORES = CpuOptions(full_cores=True)


def manager(machine: Machine, reserved: str = "0", options: CpuOptions = NO_OPTIONS) -> CpuManager:
    return CpuManager(machine, m.cpus_of(reserved), options)


def state(shared: str, machine: Machine | None = None) -> CpuState:
    """Return the state in which another pod has all CPUs that are not in the shared pool."""
    free = parse_mask(shared)
    known = 0 if machine is None else manager(machine, "").layout.all
    return CpuState(free, {PodUid("other"): {"main": known & ~free}} if known & ~free else {})


def admitted(rules: CpuManager, before: CpuState, wanted: Pod) -> CpuState:
    """Return the state after an admission that must succeed."""
    assert wanted.spec is not None
    for one in (*(wanted.spec.initContainers or ()), *wanted.spec.containers):
        after = rules.allocate(before, wanted, one, ANYWHERE)
        assert isinstance(after, CpuState), after
        before = after
    return before


def given(after: CpuState, name: str = "main") -> str:
    return format_mask(after.own(PodUid("uid"), name) or 0)


def test_it_is_a_manager_of_the_shared_protocol() -> None:
    rules: Manager[CpuState] = manager(m.ONE_SOCKET)
    assert rules.hints(CpuState(0), pod(Container(name="main")), Container(name="main")) == {}


@pytest.mark.parametrize("options", [NO_OPTIONS, FULL_CORES])
@pytest.mark.parametrize(
    ("machine", "reserved", "shared", "cpu", "expected"),
    [
        (m.ONE_SOCKET, "0", "0-1,4-5", "2", "1,5"),
        (m.TWO_SOCKETS, "0", "0-1,3-11", "6", "1,3,5,7,9,11"),
        (m.TWO_SOCKETS, "0", "0,2-4,6-11", "6", "2-4,8-10"),
        (m.TWO_SOCKETS_NO_SMT, "0", "0-1,3-7", "4000m", "4-7"),
        (m.TWO_SOCKETS_NO_SMT, "0", "0-1,3,6-7", "4", "1,3,6-7"),
        (m.TWO_SOCKETS, "0", "0-1,3-11", "8", "1,3-5,7,9-11"),
        (m.PHI, "", "1-2,9,11-13,23,25,35,38,48,51,53-54,61,113,173,233", "12",
         "1,11,13,23,25,35,38,48,53,113,173,233"),
    ],
)  # fmt: skip
def test_a_container_gets_cpus_close_together(
    options: CpuOptions, machine: Machine, reserved: str, shared: str, cpu: str, expected: str
) -> None:
    rules, wanted = manager(machine, reserved, options), pod(container("main", cpu))
    before = state(shared, machine)
    after = admitted(rules, before, wanted)
    assert given(after) == expected
    assert after.shared == before.shared & ~parse_mask(expected)


@pytest.mark.parametrize("options", [NO_OPTIONS, FULL_CORES])
def test_a_whole_socket_is_given_to_who_asks_for_as_much(options: CpuOptions) -> None:
    rules, socket = manager(m.PHI, "", options), manager(m.PHI).layout.packages
    before = CpuState(ALL_OF_PHI & ~parse_mask("3-7,11"))
    assert given(admitted(rules, before, pod(container("main", "72")))) == format_mask(socket[0])
    before = CpuState(socket[1] | parse_mask("10,22,34,47,53,61,108,115,173,181,228,235"))
    after = admitted(rules, before, pod(container("main", "76")))
    assert given(after) == format_mask(socket[1] | parse_mask("10,22,34,47"))


@pytest.mark.parametrize(
    ("machine", "reserved", "shared", "cpu", "expected"),
    [
        (m.ONE_SOCKET, "0", "0-7", "1", "4"),  # beside the reserved thread
        (m.ONE_SOCKET, "0-1", "0-7", "1", "4"),
        (m.ONE_SOCKET, "0-1", "0-1,4-5", "2", "4-5"),
        (m.PHI, "", "10-11,52-53,67", "5", "10-11,52-53,67"),
    ],
)
def test_single_threads_are_given_where_no_core_is_whole(
    machine: Machine, reserved: str, shared: str, cpu: str, expected: str
) -> None:
    rules = manager(machine, reserved)
    assert given(admitted(rules, state(shared, machine), pod(container("main", cpu)))) == expected


@pytest.mark.parametrize(
    ("machine", "shared", "cpu", "problem"),
    [
        (m.ONE_SOCKET, "0-7", "8", "requested=8, available=7"),
        (m.TWO_SOCKETS, "0,4-11", "10", "requested=10, available=8"),
        (m.ONE_SOCKET, "0,7", "2", "requested=2, available=1"),
    ],
)
def test_too_few_cpus_refuse_the_pod(machine: Machine, shared: str, cpu: str, problem: str) -> None:
    wanted = pod(container("main", cpu))
    assert wanted.spec is not None
    answer = manager(machine).allocate(
        state(shared, machine), wanted, wanted.spec.containers[0], ANYWHERE
    )
    assert answer == Refusal(
        "UnexpectedAdmissionError",
        f"Allocate failed due to not enough cpus available to satisfy request: {problem}, "
        "which is unexpected",
    )


@pytest.mark.parametrize(
    ("machine", "reserved", "cpu", "message"),
    [
        (m.ONE_SOCKET, "0", "1", "requested 1 cpus not multiple cpus per core = 2"),
        (m.PHI, "0-7", "15", "requested 15 cpus not multiple cpus per core = 4"),
        (
            m.TWO_SOCKETS,
            "1,6",
            "10",
            "not enough free physical CPUs: available physical CPUs = 8, requested CPUs = 10, "
            "CPUs per core = 2",
        ),
    ],
)
def test_parts_of_cores_are_refused_if_only_whole_ones_are_given(
    machine: Machine, reserved: str, cpu: str, message: str
) -> None:
    rules, wanted = manager(machine, reserved, FULL_CORES), container("main", cpu)
    answer = rules.allocate(rules.initial(), pod(wanted), wanted, ANYWHERE)
    assert answer == Refusal("SMTAlignmentError", f"SMT Alignment Error: {message}")


@pytest.mark.parametrize("reserved", ["0,6", None])
def test_all_whole_cores_can_be_given(reserved: str | None) -> None:
    kept = reserve_cpus(m.TWO_SOCKETS, 1001, FULL_CORES) if reserved is None else m.cpus_of("0,6")
    rules = CpuManager(m.TWO_SOCKETS, kept, FULL_CORES)
    assert given(admitted(rules, rules.initial(), pod(container("main", "10")))) == "1-5,7-11"


@pytest.mark.parametrize(
    ("by_socket", "expected"), [(True, "2,11"), (False, "2,21")], ids=["by socket", "by node"]
)
def test_the_nodes_of_an_affinity_are_widened_to_their_sockets_if_that_is_wanted(
    by_socket: bool, expected: str
) -> None:
    rules, wanted = (
        manager(m.FOUR_NODES, "0", CpuOptions(by_socket=by_socket)),
        container("main", "2"),
    )
    affinity = Hint(mask_of((0, 2)), preferred=True)
    after = rules.allocate(state("0,2,11,21-22"), pod(wanted), wanted, affinity)
    assert isinstance(after, CpuState)
    assert given(after) == expected


@pytest.mark.parametrize(
    ("count", "nodes", "expected"),
    [
        (2, None, "0,6"),
        (2, 0b01, "0,6"),
        (2, 0b10, "1,7"),
        (8, 0b01, "0-2,4,6-8,10"),
        (8, 0b10, "0-1,3,5-7,9,11"),
    ],
)
def test_cpus_of_the_affinity_come_first(count: int, nodes: int | None, expected: str) -> None:
    rules, wanted = manager(m.TWO_SOCKETS, ""), container("main", str(count))
    after = rules.allocate(rules.initial(), pod(wanted), wanted, Hint(nodes, preferred=True))
    assert isinstance(after, CpuState)
    assert given(after) == expected


@pytest.mark.parametrize(
    ("machine", "reserved", "shared", "counts", "caches"),
    [
        (m.GENOA, "0-1,96-97,192-193,288-289", "8-95,104-191,200-287,296-383", [16], {1}),
        (m.GENOA, "0-1,96-97,192-193,288-289", "8-95,104-191,200-287,296-383", [12, 2],
         {1}),
        (m.GENOA, "0-1,96-97,192-193,288-289", "8-95,104-191,200-287,296-383", [2, 12],
         {1}),
        (m.GENOA, "0-1,96-97,192-193,288-289", "8-95,104-191,200-287,296-383",
         [10, 2, 2, 2], {1}),
        (m.GENOA, "0-1,96-97,192-193,288-289", "0-383", [12, 2], {0, 1}),
        (m.ROME, "0-1,64-65", "0-127", [8], {1}),
        (m.ROME, "0-1,64-65", "0-3,8-67,72-127", [12], {0, 2}),
        (m.ROME_NO_SMT, "0-3", "0-7,16-19,24-63", [12], {1, 4, 6}),
        (m.SMALL_TWO_SOCKETS, "0-1,32-33", "0-7,16-63", [4, 2], {0}),
        (m.SMALL_TWO_SOCKETS, "0-1,32-33", "0-7,16-63", [4, 4], {0, 2}),
        (m.BERGAMO, "0-1,128-129", "0-7,10-135,138-255", [12, 12], {0, 1}),
        (m.BERGAMO, "0-1,128-129", "0-7,10-135,138-255", [14, 14], {2, 3}),
        (m.TWO_NODES_A_SOCKET, "0-3", "0-191", [48], {6, 7, 8, 9, 10, 11}),
        (m.ALTRA, "0-3", "0-127", [8], {1}),
        (m.SMALL, "0-3", "0-7,12-15,20-23,28-31", [8], {0, 1}),
    ],
)  # fmt: skip
def test_containers_of_a_pod_get_cpus_of_as_few_caches_as_upstream_gives(
    machine: Machine, reserved: str, shared: str, counts: list[int], caches: set[int]
) -> None:
    rules = manager(machine, reserved, CpuOptions(full_cores=True, by_cache=True))
    names = [f"c{index}" for index in range(len(counts))]
    wanted = pod(*(container(name, str(n)) for name, n in zip(names, counts, strict=True)))
    taken = admitted(rules, CpuState(parse_mask(shared)), wanted).given
    assert {cache for cache, cpus in rules.layout.caches.items() if cpus & taken} == caches


@pytest.mark.parametrize(
    "wanted",
    [
        pod(container("main", "1", limit="2")),
        pod(container("main", "977m")),
        pod(container("main", "1500m")),
        pod(container("main", "2"), resources=ResourceRequirements(limits={"cpu": "2"})),
        pod(container("main", "2"), init=[Container(name="setup")]),
        pod(Container(name="main")),
    ],
    ids=["burstable", "less than one", "no whole number", "pod level", "one of them", "nothing"],
)
def test_others_share_the_pool(wanted: Pod) -> None:
    rules = manager(m.ONE_SOCKET)
    before = rules.initial()
    assert admitted(rules, before, wanted) is before
    assert rules.pod_hints(before, wanted) == {}
    assert set(cpusets(before, wanted).values()) == {"0-7"}
    assert not has_exclusive(before, PodUid("uid"))


def test_a_whole_number_may_be_written_in_any_way() -> None:
    for text in ("2", "2.0", "2000m", "2000000u", "2e0"):
        wanted = container("main", text)
        assert exclusive_cpus(pod(wanted), wanted) == 2


def test_init_containers_cpus_are_used_again() -> None:
    rules = manager(m.ONE_SOCKET, "")
    after = admitted(
        rules, rules.initial(), pod(container("main", "2"), init=[container("setup", "4")])
    )
    assert given(after, "setup") == "0-1,4-5"
    assert given(after) == "0,4"
    assert after.shared == parse_mask("2-3,6-7")
    assert rules.release(after, PodUid("uid")) == rules.initial()


def test_init_containers_use_each_others_cpus() -> None:
    rules = manager(m.ONE_SOCKET, "")
    setup = [container("one", "4"), container("two", "6")]
    after = admitted(rules, rules.initial(), pod(container("main", "6"), init=setup))
    assert after.given.bit_count() == 6


def test_sidecars_keep_their_cpus() -> None:
    rules = manager(m.ONE_SOCKET, "")
    after = admitted(
        rules, rules.initial(), pod(container("main", "2"), init=[sidecar("proxy", "4")])
    )
    assert (given(after, "proxy"), given(after)) == ("0-1,4-5", "2,6")
    assert after.shared == parse_mask("3,7")


def test_a_sidecar_uses_the_cpus_of_an_init_container_before_it_and_no_other_does() -> None:
    rules = manager(m.ONE_SOCKET, "")
    setup = [container("setup", "2"), sidecar("proxy", "2")]
    after = admitted(rules, rules.initial(), pod(container("main", "2"), init=setup))
    assert [given(after, name) for name in ("setup", "proxy", "main")] == ["0,4", "0,4", "1,5"]


def test_whole_cores_of_an_init_container_count_as_free() -> None:
    # Upstream refuses such a pod on a full node, although its CPUs are there.
    rules = manager(m.ONE_SOCKET, "0,4", FULL_CORES)
    after = admitted(
        rules, rules.initial(), pod(container("main", "6"), init=[container("setup", "6")])
    )
    assert given(after) == given(after, "setup") == "1-3,5-7"


def test_a_container_that_has_its_cpus_keeps_them() -> None:
    # Also where an option would refuse it by now: a restart of the agent restarts nothing.
    wanted = container("main", "3")
    before = CpuState(parse_mask("0-4"), {PodUid("uid"): {"main": parse_mask("5-7")}})
    rules = manager(m.ONE_SOCKET, "0", FULL_CORES)
    assert rules.allocate(before, pod(wanted), wanted, ANYWHERE) is before


def test_release_gives_back_all_cpus_of_a_pod_and_nothing_else() -> None:
    one, other = PodUid("uid"), PodUid("other")
    before = CpuState(
        parse_mask("6-7"), {one: {"a": parse_mask("1,3"), "b": parse_mask("5")}, other: {"a": 4}}
    )
    rules = manager(m.ONE_SOCKET, "")
    assert rules.release(before, one) == CpuState(parse_mask("1,3,5-7"), {other: {"a": 4}})
    assert rules.release(before, PodUid("unknown")) is before


def test_each_container_runs_on_its_own_cpus_or_on_the_shared_pool() -> None:
    rules = manager(m.ONE_SOCKET)
    wanted = pod(container("main", "2"), container("log", "500m"))
    after = admitted(rules, rules.initial(), wanted)
    assert cpusets(after, wanted) == {"main": "1,5", "log": "0,2-4,6-7"}
    assert has_exclusive(after, PodUid("uid"))
    assert has_exclusive(after, PodUid("uid"), "main")
    assert not has_exclusive(after, PodUid("uid"), "log")


def test_reserved_cpus_are_in_the_shared_pool_unless_they_are_strictly_reserved() -> None:
    assert manager(m.ONE_SOCKET, "0,4").initial().shared == parse_mask("0-7")
    strict = manager(m.ONE_SOCKET, "0,4", CpuOptions(strict_reservation=True))
    assert strict.initial().shared == parse_mask("1-3,5-7")
    assert strict.allocatable == manager(m.ONE_SOCKET, "0,4").allocatable == m.cpus_of("1-3,5-7")
    emptied = admitted(strict, strict.initial(), pod(container("main", "6")))
    assert cpusets(emptied, pod(Container(name="other"), uid="2")) == {"other": ""}


@pytest.mark.parametrize(
    ("machine", "milli", "expected"),
    [
        (m.ONE_SOCKET, 1, "0"),
        (m.ONE_SOCKET, 1500, "0,4"),
        (m.TWO_SOCKETS, 2000, "0,6"),
        (m.TWO_SOCKETS_NO_SMT, 1200, "0-1"),
    ],
)
def test_a_reserved_amount_is_rounded_up_to_cpus_close_together(
    machine: Machine, milli: int, expected: str
) -> None:
    assert reserve_cpus(machine, milli) == m.cpus_of(expected)


def test_cpus_that_are_reserved_by_name_are_those() -> None:
    assert reserve_cpus(m.ONE_SOCKET, 2000, chosen=m.cpus_of("3,7")) == m.cpus_of("3,7")


def test_a_reservation_must_be_of_some_cpus_that_the_machine_has() -> None:
    with pytest.raises(CpuConfigError, match=r"greater than zero: set kubeReserved\.cpu"):
        reserve_cpus(m.ONE_SOCKET, 0)
    with pytest.raises(CpuConfigError, match="requested=9, available=8"):
        reserve_cpus(m.ONE_SOCKET, 8001)
    with pytest.raises(CpuConfigError, match=r"reserved CPUs 8-9 are not online: .* has CPUs 0-7"):
        manager(m.ONE_SOCKET, "0,8-9")


@pytest.mark.parametrize(
    ("init", "main", "expected"),
    [
        ([], ["2"], 2),
        (["5"], ["2"], 5),
        (["2"], ["5"], 5),
        (["2", "4"], ["2", "4"], 6),
        (["1*"], ["1"], 2),
        (["5", "1*", "2*", "3*"], ["1"], 7),
        (["5", "1*", "2*", "5", "3*"], ["1"], 8),
        (["10*", "200"], ["100"], 210),
        ([], ["2", "500m"], 2),
    ],
)
def test_a_pod_asks_for_what_its_containers_have_at_the_same_time(
    init: list[str], main: list[str], expected: int
) -> None:
    first = [
        container(f"i{at}", cpu.rstrip("*"), restart="Always" if cpu.endswith("*") else None)
        for at, cpu in enumerate(init)
    ]
    wanted = pod(*(container(f"c{at}", cpu) for at, cpu in enumerate(main)), init=first)
    assert pod_exclusive_cpus(wanted) == expected
