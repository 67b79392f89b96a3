"""Gates say what is here: each that is on has its module."""

from __future__ import annotations

from pathlib import Path

import pytest

import kubelet_trio
from kubelet_trio.config.gates import (
    EITHER,
    EVIDENCE,
    GATES,
    OTHERS,
    gate_problems,
    gate_stage,
)

_PACKAGE = Path(kubelet_trio.__file__).parent


def test_every_gate_that_is_on_has_a_module_and_no_other() -> None:
    assert {name for name, is_on in GATES.items() if is_on} == set(EVIDENCE)


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_module_is_there(name: str) -> None:
    module = _PACKAGE / Path(*EVIDENCE[name].split("."))
    assert module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()


@pytest.mark.parametrize("name", sorted(set(GATES) - EITHER))
def test_any_other_gate_may_be_set_to_what_it_is(name: str) -> None:
    state, other = ("on", "false") if GATES[name] else ("off", "true")
    assert gate_problems({name: GATES[name]}) == []
    assert gate_problems({name: not GATES[name]}) == [
        f"not supported yet: feature gate {name}={other} (it is {state} here)"
    ]


def test_a_gate_is_the_kubelets_or_another_components() -> None:
    assert not OTHERS & GATES.keys()


@pytest.mark.parametrize("value", [True, False])
def test_gates_of_other_components_are_known(value: bool) -> None:
    assert gate_problems(dict.fromkeys(OTHERS, value)) == []


@pytest.mark.parametrize("name", ["AllowServiceExternalIPs", "ServiceCIDRStatusFieldWiping"])
def test_gates_that_1_36_brings_are_known(name: str) -> None:
    assert gate_problems({name: True}) == []


@pytest.mark.parametrize("name", ["CPUCFSQuotaPeriod", "RuntimeClassInImageCriAPI", "Nonsense"])
def test_an_unknown_gate_is_an_error(name: str) -> None:
    assert gate_problems({name: True}) == [
        f"invalid configuration: unrecognized feature gate: {name}"
    ]


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("DisableCPUQuotaWithExclusiveCPUs", "DEPRECATED"),
        ("CustomCPUCFSQuotaPeriod", ""),
        ("SELinuxMount", "BETA"),
        ("ContainerStopSignals", "ALPHA"),
    ],
)
def test_a_gate_has_its_stage_of_1_36(name: str, stage: str) -> None:
    assert gate_stage(name) == stage
