"""CEL selectors: Kubernetes' environment for devices, errors, and limits."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
from lightkube.models.resource_v1 import Device

from kubelet_trio.managers.claims.allocation import AllocationError, DeviceId, Selectors
from kubelet_trio.managers.claims.allocation.devices import Offered, Version
from kubelet_trio.managers.claims.allocation.requests import Selector

DEVICE = Offered(
    DeviceId("d.example.com", "pool", "gpu-0"),
    Device("gpu-0"),
    attributes={
        "model": "a100",
        "cores": 3,
        "ecc": True,
        "driverVersion": Version("1.10.0"),
        "ext.example.com/family": "z",
        "modes": ("x", "y"),
    },
    capacity={"memory": 40 * 2**30 * 10**9},
)
A = 'device.attributes["d.example.com"]'
MEMORY = 'device.capacity["d.example.com"].memory'


def matches(expression: str) -> bool:
    return Selectors().matches(Selector(expression, "class c: selector #0"), DEVICE)


def failure(expression: str) -> str:
    with pytest.raises(AllocationError) as caught:
        matches(expression)
    return str(caught.value)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "d.example.com"', True),
        ("device.driver=='other'", False),
        ('"d.example.com" == device.driver', True),
        (f'{A}.model == "a100"', True),
        (f'{A}.model == "h100"', False),
        (f"{A}.cores > 2 && {A}.ecc", True),
        (f"{A}.cores - 1 == 2", True),
        (f"{A}.cores == 3u", True),
        (f'{A}.cores == "3"', False),  # of another type: not equal, and no error
        (f'{A}.cores != "3"', True),
        (f"{A}.ecc == 1", False),
        (f"{A}.cores in [3, 4]", True),
        ('device.attributes["ext.example.com"].family == "z"', True),
        # An unknown domain is an empty map.
        ('has(device.attributes["unknown"].model)', False),
        ('"unknown" in device.attributes', False),
        (f"has({A}.model)", True),
        (f"has({A}.other)", False),
        (f'"model" in {A}', True),
        # Optional selection.
        (f'{A}.?model.orValue("") == "a100"', True),
        (f'{A}.?other.orValue("none") == "none"', True),
        ('device.attributes[?"unknown"].?model.hasValue()', False),
        ("optional.of(1).value() == 1 && optional.none().or(optional.of(2)).value() == 2", True),
        (f"cel.bind(dra, {A}, dra.ecc && dra.cores == 3)", True),
        # Quantities.
        (f'{MEMORY}.isGreaterThan(quantity("39Gi"))', True),
        (f'{MEMORY}.isLessThan(quantity("40Gi"))', False),
        (f'{MEMORY}.compareTo(quantity("40Gi")) == 0', True),
        (f'{MEMORY} == quantity("40960Mi")', True),
        ('quantity("1").add(quantity("1")).sub(1).asInteger() == 1', True),
        ('isQuantity("1x") || !isQuantity("1")', False),
        ('quantity("500m").isInteger() || quantity("-1").sign() == 1', False),
        ('quantity("500m").asApproximateFloat() == 0.5', True),
        # Versions.
        (f'{A}.driverVersion.isGreaterThan(semver("1.9.0"))', True),
        (f"{A}.driverVersion.minor() == 10", True),
        ('semver("1.0.0-rc.1").isLessThan(semver("1.0.0"))', True),
        ('semver("1.0.0-2").compareTo(semver("1.0.0-10")) == -1', True),
        ('semver("1.0.0+a") == semver("1.0.0+b")', True),
        ('isSemver("v1.0") || isSemver("01.0.0")', False),
        ('semver("v1.2", true) == semver("1.2.0")', True),
        # Lists of a list attribute, and of one value.
        (f'{A}.modes.includes("y") && {A}.model.includes("a100")', True),
        (f'{A}.modes.exists(m, m == "x") && {A}.modes.all(m, m != "z")', True),
        # Operators absorb errors as CEL says.
        (f"{A}.other == 1 || true", True),
        (f"false && {A}.other == 1", False),
        (f'{A}.model.matches("^a[0-9]+$") && {A}.model.startsWith("a")', True),
        ('"ABC".lowerAscii() == "abc" && "a".upperAscii() == "A" && " a ".trim() == "a"', True),
        ("7 / 2 == 3 && -7 / 2 == -3 && -7 % 2 == -1", True),
        ("[1, 2, 3].map(x, x * 2).filter(x, x > 2) == [4, 6]", True),
        ("type(device.driver) == string ? true : false", True),
        ("device.allowMultipleAllocations", False),
    ],
)
def test_matches(expression: str, expected: bool) -> None:
    assert matches(expression) is expected


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("1 +", "CEL compile error: syntax error at line 1, column 3"),
        ("nofun(1)", "CEL compile error: undeclared reference to 'nofun'"),
        ("[1].reduce(a, b, 0, a + b) == 1", "undeclared reference to 'reduce'"),
        ("has(device)", "invalid argument to has() macro"),
        ("[1].map(x)", "expected 2 arguments"),
        (f"{A}.cores", "the result is not true or false, but int"),
        (f'{A}.other == "x"', "no such key: other"),
        (f'{A}.cores > "a"', "no such overload"),
        ("nothing", "undeclared reference to 'nothing'"),
        ('device.driver.matches("(")', "not a regular expression"),
        ('quantity("many").isInteger()', "'many' is not a quantity"),
        ("1 / 0 == 1", "divide by zero"),
        ("9223372036854775807 + 1 == 1", "overflow"),
        ("[1][5] == 1", "index out of bounds: 5"),
        ("[1][-1] == 1", "index out of bounds: -1"),
        ('string(quantity("1")) == "1"', "no such overload"),
        ("optional.none().value() == 1", "optional.none() dereference"),
    ],
)
def test_errors_name_selector_and_device(expression: str, text: str) -> None:
    told = failure(expression)
    assert told.startswith("class c: selector #0")
    assert text in told
    if "compile" not in told:
        assert "on device d.example.com/pool/gpu-0: CEL runtime error" in told


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 2000 + "true" + ")" * 2000,
        "!" * 2000 + "true",
        # Python would repeat and format these.
        '"a" * 9000000000 == ""',
        '"%9000000000d" % 5 == ""',
        # Doubles 60 times.
        "cel.bind(a, 'xxxxxxxx', " + "cel.bind(a, a + a, " * 60 + "a == ''" + ")" * 61,
        "[1,2,3,4,5,6,7,8].all(a, " * 7 + "[1,2,3,4,5,6,7,8] == []" + " || true)" * 7,
        "a" * 10241,
    ],
    ids=["parentheses", "not", "repeat", "format", "double", "nested", "long"],
)
def test_a_hostile_expression_ends_with_an_error(expression: str) -> None:
    assert failure(expression)


def test_the_limit_is_of_all_evaluations_of_an_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kubelet_trio.managers.claims.allocation.selectors.MAX_TOTAL_COST", 50)
    selectors = Selectors()
    selector = Selector(f"{A}.cores == 3", "class c: selector #0")
    selectors.begin()
    for _ in range(5):
        selectors.matches(selector, DEVICE)
    with pytest.raises(AllocationError, match="take too long"):
        selectors.matches(selector, DEVICE)
    selectors.begin()
    assert selectors.matches(selector, DEVICE)


def test_without_the_library_the_text_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "celpy":
            raise ImportError("No module named 'celpy'")
        return real(name, *args, **kwargs)

    name = "kubelet_trio.managers.claims.allocation.cel"
    for module in (name, f"{name}_functions"):
        monkeypatch.delitem(sys.modules, module, raising=False)
        package = sys.modules["kubelet_trio.managers.claims.allocation"]
        monkeypatch.delattr(package, module.rpartition(".")[2], raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'kubelet-trio[dra]'" in failure("true == true")
    assert matches('device.driver == "d.example.com"')  # the usual class needs no library
