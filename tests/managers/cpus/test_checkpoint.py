"""The state file is the Go kubelet's, and one that does not fit this node is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.managers.cpus import (
    MOST_BYTES,
    NO_OPTIONS,
    NONE,
    CpuCheckpointError,
    CpuManager,
    CpuOptions,
    CpuState,
    check_state,
    decode_checkpoint,
    encode_checkpoint,
    parse_mask,
    restore,
)
from kubelet_trio.model import PodUid
from tests.managers.cpus import machines as m

_POD = PodUid("pod")
_SHARED = CpuState(parse_mask("1-3"))
_TWO = CpuState(
    parse_mask("1-3"), {_POD: {"container1": parse_mask("4-6"), "container2": parse_mask("1-3")}}
)
_BY_POD = {"pod": {"container1": "4-6", "container2": "1-3"}}
_BY_ID = {"containerID1": "4-6", "containerID2": "1-3"}


def file(shared: str = "1-3", policy: str = NONE, **fields: object) -> bytes:
    return json.dumps({"policyName": policy, "defaultCpuSet": shared, **fields}).encode()


# Checksums that the Go kubelet wrote.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (file("4-6", entries={}, checksum=354655845), CpuState(parse_mask("4-6"))),
        (file(checksum=1694838852), _SHARED),
        (file(entries=_BY_POD, checksum=3610638499), _TWO),
        (file(entries=_BY_POD), _TWO),  # 0: a file of before there were checksums
        (file("", checksum=1353318690), CpuState(0)),
    ],
)
def test_files_of_all_versions_are_read(data: bytes, expected: CpuState) -> None:
    assert decode_checkpoint(data, NONE) == expected


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (file("4-6", entries={}, checksum=1337), "checkpoint is corrupted"),
        (file(entries=_BY_POD, podEntries={}, checksum=12345), "checkpoint is corrupted"),
        (b"{", "it is no checkpoint in JSON: "),
        (b"[]", "it is no checkpoint in JSON: "),
        (b" " * (MOST_BYTES + 1), f"it has {MOST_BYTES + 1} bytes"),
        (
            file(policy="other", entries={}, checksum=1394507217),
            'configured policy "none" differs from state checkpoint policy "other"',
        ),
        (file("1.3", checksum=3021697696), 'could not parse default cpu set "1.3": '),
        (
            file(entries={"pod": {"container1": "4-6", "container2": "asd"}}, checksum=962272150),
            'could not parse cpuset "asd" for container "container2" in pod "pod": ',
        ),
        (
            file(entries=_BY_ID, checksum=3680390589),
            "it is of a kubelet before 1.18: containerID1 is a container ID",
        ),
        (
            file(entries=_BY_POD | _BY_ID),
            "it is of a kubelet before 1.18: containerID1 is a container ID",
        ),
        (
            file(entries=_BY_POD, podEntries={"pod": {"cpuSet": "4-6"}}, checksum=2649431787),
            "it has pod-level entries, which need PodLevelResourceManagers",
        ),
        (file("0-99999999"), "could not parse default cpu set"),
        (file("3-1"), "could not parse default cpu set"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(CpuCheckpointError) as caught:
        decode_checkpoint(data, NONE)
    assert str(caught.value).startswith(problem)


def test_what_is_written_is_what_the_go_kubelet_writes() -> None:
    assert encode_checkpoint(CpuState(0), NONE) == (
        b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    )
    assert encode_checkpoint(_TWO, NONE) == (
        b'{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6",'
        b'"container2":"1-3"}},"checksum":3610638499}'
    )


def test_odd_names_are_escaped_as_go_does() -> None:
    state = CpuState(1, {PodUid("<a&b>"): {"main": 2}})
    assert b'{"\\u003ca\\u0026b\\u003e":{"main":"1"}}' in encode_checkpoint(state)
    assert decode_checkpoint(encode_checkpoint(state)) == state


_MASKS = st.integers(1, (1 << 64) - 1)
_PODS = st.dictionaries(
    st.text(min_size=1).map(PodUid),
    st.dictionaries(st.text(min_size=1), _MASKS, min_size=1, max_size=3),
    max_size=4,
)


@given(st.builds(CpuState, _MASKS, _PODS))
def test_what_is_written_is_read_again(state: CpuState) -> None:
    assert decode_checkpoint(encode_checkpoint(state)) == state


@given(st.builds(CpuState, _MASKS, _PODS), st.integers(0), st.integers(1, 9))
def test_a_changed_digit_is_noticed(state: CpuState, place: int, by: int) -> None:
    data = bytearray(encode_checkpoint(state))
    digits = [at for at, byte in enumerate(data) if chr(byte) in "0123456789"]
    at = digits[place % len(digits)]
    data[at] = ord("0") + (data[at] - ord("0") + by) % 10
    with pytest.raises(CpuCheckpointError):
        decode_checkpoint(bytes(data))


_MAIN = {PodUid("p"): {"c": parse_mask("2,8")}}
_ALL = {PodUid("p"): {"c": parse_mask("1-5,7-11")}}


@pytest.mark.parametrize(
    ("shared", "exclusive", "options", "expected"),
    [
        ("", {}, NO_OPTIONS, "0-11"),
        ("", {}, CpuOptions(strict_reservation=True), "1-5,7-11"),
        ("0-1,3-7,9-11", _MAIN, NO_OPTIONS, "0-1,3-7,9-11"),
        ("1,3-5,7,9-11", _MAIN, CpuOptions(strict_reservation=True), "1,3-5,7,9-11"),
        ("", _ALL, CpuOptions(strict_reservation=True), ""),
    ],
)
def test_a_state_that_fits_the_machine_is_taken(
    shared: str, exclusive: dict[PodUid, dict[str, int]], options: CpuOptions, expected: str
) -> None:
    rules = CpuManager(m.TWO_SOCKETS, m.cpus_of("0,6"), options)
    state = check_state(CpuState(parse_mask(shared), exclusive), rules)
    assert state == CpuState(parse_mask(expected), exclusive)


@pytest.mark.parametrize(
    ("shared", "exclusive", "options", "problem"),
    [
        ("", _MAIN, NO_OPTIONS, "default cpuset cannot be empty"),
        (
            "1-5,7-11",
            {},
            NO_OPTIONS,
            'not all reserved cpus: "0,6" are present in defaultCpuSet: "1-5,7-11"',
        ),
        (
            "0-5,7-11",
            {},
            CpuOptions(strict_reservation=True),
            'some of strictly reserved cpus: "0" are present in defaultCpuSet: "0-5,7-11"',
        ),
        (
            "0-2,6",
            _MAIN,
            NO_OPTIONS,
            'pod: p, container: c cpuset: "2,8" overlaps with default cpuset "0-2,6"',
        ),
        (
            "0-1,3-7,9-12",
            _MAIN,
            NO_OPTIONS,
            'current set of available CPUs "0-11" doesn\'t match with CPUs in state "0-12"',
        ),
        (
            "0-1,3-7,9-10",
            _MAIN,
            NO_OPTIONS,
            'current set of available CPUs "0-11" doesn\'t match with CPUs in state "0-10"',
        ),
    ],
)
def test_a_state_of_another_machine_or_reservation_is_refused_with_what_to_do(
    shared: str, exclusive: dict[PodUid, dict[str, int]], options: CpuOptions, problem: str
) -> None:
    rules = CpuManager(m.TWO_SOCKETS, m.cpus_of("0,6"), options)
    data = encode_checkpoint(CpuState(parse_mask(shared), exclusive))
    with pytest.raises(CpuCheckpointError) as caught:
        restore(data, rules, "/var/lib/kubelet/cpu_manager_state")
    assert str(caught.value) == (
        f"could not restore state from checkpoint: {problem}, please drain this node and delete "
        'the CPU manager checkpoint file "/var/lib/kubelet/cpu_manager_state" before restarting '
        "Kubelet"
    )
