"""Init containers' memory is used again, sidecars' is not."""

from __future__ import annotations

import pytest

from kubelet_trio.managers import Hint
from kubelet_trio.managers.memory import encode_checkpoint, restore_state
from tests.managers.memory.shapes import (
    GI,
    HUGE,
    MI,
    free,
    groups,
    held,
    manager,
    placed,
    wanting,
)
from tests.managers.pods import pod


@pytest.mark.parametrize(
    ("init", "main", "left", "reserved"),
    [
        ([1, 2], [3, 4], [0, 0], 7),
        ([4, 3], [2, 1], [0, 1], 4),
        ([7, 4], [4, 3], [0, 0], 7),
        ([7, 4], [5, 2], [0, 0], 7),
        ([5, 3], [6], [0, 0], 6),
        ([3], [1], [2], 3),
    ],
)
def test_a_pod_has_the_most_of_its_init_and_main_containers(
    init: list[int], main: list[int], left: list[int], reserved: int
) -> None:
    rules = manager(7680 * MI, huge=8)
    wanted = pod(
        *(wanting(f"main{n}", f"{size}Gi", f"{size}Gi") for n, size in enumerate(main)),
        init=[wanting(f"init{n}", f"{size}Gi", f"{size}Gi") for n, size in enumerate(init)],
    )
    state = placed(rules, rules.empty(), wanted)
    sizes = {
        name: [block.size for block in blocks or ()] for name, blocks in held(state, wanted).items()
    }
    assert sizes == {
        **{f"init{n}": [size * GI] * 2 for n, size in enumerate(left)},
        **{f"main{n}": [size * GI] * 2 for n, size in enumerate(main)},
    }
    assert free(state) == [7680 * MI - reserved * GI]
    assert free(state, HUGE) == [8 * GI - reserved * GI]
    assert groups(state) == [(1, 2 * len(init) + 2 * len(main))]


def test_sidecars_keep_theirs() -> None:
    rules = manager(7 * GI, huge=7)
    wanted = pod(
        wanting("main", "1Gi", "1Gi"),
        init=[
            wanting("init1", "1Gi", "1Gi"),
            wanting("side2", "2Gi", "2Gi", restart="Always"),
            wanting("init3", "3Gi", "3Gi"),
            wanting("side4", "4Gi", "4Gi", restart="Always"),
        ],
    )
    state = placed(rules, rules.empty(), wanted)
    sizes = {name: blocks[0].size // GI for name, blocks in held(state, wanted).items() if blocks}
    assert sizes == {"init1": 0, "side2": 2, "init3": 0, "side4": 4, "main": 1}
    assert free(state) == [0]
    assert groups(state) == [(1, 10)]


def test_a_group_is_used_again_only_as_a_whole() -> None:
    rules = manager(2 * GI, 2 * GI)
    wanted = pod(wanting("main", "3Gi"), init=[wanting("setup", "4Gi")])
    state = placed(rules, rules.empty(), wanted)
    assert {name: blocks for name, blocks in held(state, wanted).items() if blocks}.keys() == {
        "setup",
        "main",
    }
    assert free(state) == [0, 0]
    assert groups(state) == [(0b11, 2), (0b11, 2)]


def test_hints_count_what_init_containers_leave() -> None:
    rules = manager(2 * GI, 2 * GI)
    main = wanting("main", "2Gi")
    wanted = pod(main, init=[wanting("setup", "2Gi")])
    setup = wanted.spec.initContainers[0] if wanted.spec and wanted.spec.initContainers else main
    state = rules.allocate(rules.empty(), wanted, setup, Hint(0b01, preferred=True))
    assert rules.hints(state, wanted, main) == {  # type: ignore[arg-type]
        "memory": (Hint(0b01, preferred=True), Hint(0b10, preferred=True))
    }


def test_another_pod_does_not_get_it() -> None:
    rules = manager(2 * GI)
    first = pod(wanting("main", "1Gi"), init=[wanting("setup", "2Gi")])
    state = placed(rules, rules.empty(), first)
    second = wanting("main", "1Gi")
    assert rules.hints(state, pod(second, uid="b"), second) == {}


def test_the_state_after_reuse_outlives_a_restart() -> None:
    rules = manager(8 * GI, huge=8)
    wanted = pod(wanting("main", "2Gi", "1Gi"), init=[wanting("setup", "4Gi", "2Gi")])
    state = placed(rules, rules.empty(), wanted)
    assert restore_state(rules, encode_checkpoint(state), "f") == state
