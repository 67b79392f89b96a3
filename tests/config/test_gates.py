"""Gates say what is here: each that is on has its module, each that is not built its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import kubelet_trio
from kubelet_trio.config.gates import EITHER, EVIDENCE, GATES, NOT_BUILT, gate_notes, gate_problems

_PACKAGE = Path(kubelet_trio.__file__).parent


def test_every_gate_that_is_on_has_a_module_and_no_other() -> None:
    assert {name for name, is_on in GATES.items() if is_on} == set(EVIDENCE)
    assert not set(EVIDENCE) & set(NOT_BUILT)


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_module_is_there(name: str) -> None:
    module = _PACKAGE / Path(*EVIDENCE[name].split("."))
    assert module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()


@pytest.mark.parametrize("name", NOT_BUILT)
def test_what_is_not_built_is_off_and_whoever_turns_it_on_is_told_why(name: str) -> None:
    assert GATES[name] is False
    # Upstream's default: no reason to refuse a configuration that spells it out.
    assert gate_problems({name: False}) == gate_problems({name: True}) == []
    assert gate_notes({name: False}) == []
    [note] = gate_notes({name: True})
    assert note == f"feature gate {name}=true has no effect: {NOT_BUILT[name]}"


@pytest.mark.parametrize("name", sorted(set(GATES) - set(NOT_BUILT) - EITHER))
def test_any_other_gate_may_be_set_to_what_it_is(name: str) -> None:
    state, other = ("on", "false") if GATES[name] else ("off", "true")
    assert gate_problems({name: GATES[name]}) == []
    assert gate_problems({name: not GATES[name]}) == [
        f"not supported yet: feature gate {name}={other} (it is {state} here)"
    ]
