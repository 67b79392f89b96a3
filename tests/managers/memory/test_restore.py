"""What another start makes of the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kubelet_trio.managers import Machine
from kubelet_trio.managers.memory import (
    MemoryManager,
    MemoryStateError,
    encode_checkpoint,
    release_container,
    restore_state,
)
from tests.managers.memory.shapes import (
    GI,
    HUGE,
    MI,
    block,
    free,
    holding,
    manager,
    numa,
    uid,
)

PATH = "/var/lib/kubelet/memory_manager_state"


def refusal(rules: MemoryManager, data: bytes) -> str:
    with pytest.raises(MemoryStateError) as caught:
        restore_state(rules, data, PATH)
    message = str(caught.value)
    begin = "could not restore state from checkpoint: "
    end = (
        ", please drain this node and delete the memory manager checkpoint file "
        f'"{PATH}" before restarting Kubelet'
    )
    assert message.startswith(begin)
    assert message.endswith(end)
    return message[len(begin) : -len(end)]


def changed(data: bytes, change: Callable[[Any], None]) -> bytes:
    body = json.loads(data)
    change(body)
    return json.dumps({**body, "checksum": 0}).encode()


def test_without_a_checkpoint_the_node_is_empty() -> None:
    rules = manager(GI, GI)
    assert restore_state(rules, None, PATH) == rules.empty()
    written = encode_checkpoint(replace(rules.empty(), nodes={}))
    assert restore_state(rules, written, PATH) == rules.empty()


def test_a_group_may_have_its_parts_elsewhere_than_the_entries_alone_say() -> None:
    # What is given back comes off the lowest node first, whoever's it was.
    rules = manager(220 * MI, 220 * MI)
    state = holding(rules, ([0, 1], 200 * MI), ([0, 1], 40 * MI), ([0, 1], 10 * MI))
    state = release_container(state, uid("holder0"), "main")
    assert free(state) == [200 * MI, 190 * MI]
    assert restore_state(rules, encode_checkpoint(state), PATH) == state


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (manager(2 * GI), "NUMA nodes 0, 1 in the checkpoint, 0 on the machine"),
        (
            manager(3 * GI, 2 * GI, huge=1),
            f"NUMA node 0: memory: total {3 * GI + 512 * MI} in the checkpoint, "
            f"{4 * GI + 512 * MI} on the machine",
        ),
        (
            manager(2 * GI, 2 * GI, huge=2),
            f"NUMA node 0: {HUGE}: total {GI} in the checkpoint, {2 * GI} on the machine",
        ),
        (
            replace(manager(2 * GI, 2 * GI, huge=1), reserved={0: {"memory": GI}}),
            f"NUMA node 0: memory: systemReserved {512 * MI} in the checkpoint, {GI} on the",
        ),
        (
            MemoryManager(
                Machine((), tuple(replace(numa(n, 2 * GI), huge_pages={}) for n in (0, 1))), {}
            ),
            f"NUMA node 0: {HUGE}, memory in the checkpoint, memory on the machine",
        ),
    ],
)
def test_a_changed_machine_or_reservation_is_refused(now: MemoryManager, difference: str) -> None:
    rules = manager(2 * GI, 2 * GI, huge=1)
    said = refusal(now, encode_checkpoint(rules.empty()))
    assert said.startswith("[memorymanager] the expected machine state is different from the real")
    assert difference in said


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda body: body["machineState"].clear(),
            "[memorymanager] machine state can not be empty when it has memory assignments",
        ),
        (
            lambda body: body["machineState"]["0"].update(numberOfAssignments=7),
            "NUMA node 0: 7 assignments, 1 by its entries",
        ),
        (
            lambda body: body["machineState"]["0"].update(cells=[0, 1]),
            "NUMA node 0: group 0, 1, 0 by its entries",
        ),
        (
            lambda body: body["machineState"]["0"]["memoryMap"]["memory"].update(free=5),
            f"NUMA node 0: memory: free 5 in the checkpoint, {GI} by its entries",
        ),
        (
            lambda body: body["machineState"]["0"]["memoryMap"]["memory"].update(reserved=5),
            f"NUMA node 0: memory: reserved 5 in the checkpoint, {GI} by its entries",
        ),
        (
            lambda body: body["entries"]["holder0"]["main"][0].update(numaAffinity=[7]),
            "[memorymanager] (pod: holder0, container: main) the memory assignment uses the NUMA "
            "that does not exist: 7",
        ),
        (
            lambda body: body["entries"]["holder0"]["main"][0].update(type="hugepages-2Mi"),
            "the memory assignment uses memory resource that does not exist: hugepages-2Mi",
        ),
        (lambda body: body.update(entries={}), "1 assignments, 0 by its entries"),
        (lambda body: body.update(policyName="None"), 'configured policy "Static" differs'),
    ],
)
def test_a_state_that_does_not_add_up_is_refused(
    change: Callable[[Any], None], problem: str
) -> None:
    rules = manager(2 * GI, 2 * GI)
    written = encode_checkpoint(holding(rules, ([0], GI)))
    assert problem in refusal(rules, changed(written, change))


def test_damage_is_told_with_the_file_and_what_to_do() -> None:
    assert refusal(manager(GI), b"{") == "Input data was truncated"


def test_a_checkpoint_of_the_go_kubelet_with_blocks_in_its_order_goes_on() -> None:
    rules = manager(2 * GI, huge=1)
    state = holding(rules, ([0], GI, 1))

    def turn(body: Any) -> None:
        body["entries"]["holder0"]["main"].reverse()

    again = restore_state(rules, changed(encode_checkpoint(state), turn), PATH)
    assert again.blocks[uid("holder0")]["main"] == (block([0], GI), block([0], GI, HUGE))
    assert again.nodes == state.nodes
    written = json.loads(encode_checkpoint(again))
    assert [b["type"] for b in written["entries"]["holder0"]["main"]] == ["memory", HUGE]


def test_a_pod_without_containers_can_be_released() -> None:
    rules = manager(GI)
    data = changed(encode_checkpoint(rules.empty()), lambda body: body.update(entries={"gone": {}}))
    state = restore_state(rules, data, PATH)
    assert rules.release(state, uid("gone")) == rules.empty()
