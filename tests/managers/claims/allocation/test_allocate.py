"""Allocation of devices to claims: what is taken, and what is told if there is none."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.models.resource_v1 import ResourceClaim, ResourceSlice

from kubelet_trio.managers.claims.allocation import AllocationError, DeviceId
from tests.managers.claims.allocation.worlds import (
    DRIVER,
    cel,
    claim,
    device,
    device_class,
    exactly,
    names,
    resource_slice,
    run,
)

THREE = resource_slice("gpu-0", "gpu-1", "gpu-2")
NUMA = resource_slice(
    device("gpu-0", attributes={"numa": 0, "serial": "a"}),
    device("gpu-1", attributes={"numa": 1, "serial": "b"}),
    device("gpu-2", attributes={"numa": 1, "serial": "a"}),
)
SAME: dict[str, Any] = {"constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}
OTHER: dict[str, Any] = {"constraints": [{"distinctAttribute": f"{DRIVER}/serial"}]}
ONE_USED = {DeviceId(DRIVER, "n1", "gpu-0"): "default/other"}


def failure(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(AllocationError) as caught:
        run(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "offered", "expected"),
    [
        (claim(exactly()), THREE, ["r=gpu-0"]),
        (claim(exactly(count=2)), THREE, ["r=gpu-0", "r=gpu-1"]),
        (claim(exactly(allocationMode="All")), THREE, ["r=gpu-0", "r=gpu-1", "r=gpu-2"]),
        (claim(exactly("a"), exactly("b")), THREE, ["a=gpu-0", "b=gpu-1"]),
        (claim(), THREE, []),
        # A constraint makes the search go back.
        (claim(exactly(count=2), **SAME), NUMA, ["r=gpu-1", "r=gpu-2"]),
        (claim(exactly(count=2), **OTHER), NUMA, ["r=gpu-0", "r=gpu-1"]),
        (
            claim(exactly("a"), exactly("b"), exactly("c"), constraints=[
                {"matchAttribute": f"{DRIVER}/numa", "requests": ["b", "c"]}
            ]),
            NUMA,
            ["a=gpu-0", "b=gpu-1", "c=gpu-2"],
        ),
        # Alternatives in order of preference.
        (
            claim({"name": "r", "firstAvailable": [
                {"name": "four", "deviceClassName": DRIVER, "count": 4},
                {"name": "two", "deviceClassName": DRIVER, "count": 2},
                {"name": "one", "deviceClassName": DRIVER},
            ]}),
            THREE,
            ["r/two=gpu-0", "r/two=gpu-1"],
        ),
        (
            claim(exactly(capacity={"requests": {"memory": "10Gi"}})),
            resource_slice(
                device("small", capacity={"memory": {"value": "5Gi"}}),
                device("large", capacity={"memory": {"value": "10Gi"}}),
                "none",
            ),
            ["r=large"],
        ),
        # Devices of another node are not there.
        (
            claim(exactly()),
            resource_slice(
                device("far", nodeName="n2"),
                device("near", nodeName="n1"),
                perDeviceNodeSelection=True,
            ),
            ["r=near"],
        ),
    ],
)  # fmt: skip
def test_takes_the_first_solution(
    wanted: ResourceClaim, offered: ResourceSlice, expected: list[str]
) -> None:
    assert names(run([wanted], [offered])[0]) == expected


def test_devices_in_use_are_not_given_twice_but_with_admin_access() -> None:
    assert names(run([claim(exactly())], [THREE], in_use=ONE_USED)[0]) == ["r=gpu-1"]
    (admin,) = run([claim(exactly(adminAccess=True))], [THREE], in_use=ONE_USED)
    assert names(admin) == ["r=gpu-0"]
    assert admin.devices is not None
    assert admin.devices.results is not None
    assert admin.devices.results[0].adminAccess
    # Nor twice in one claim, even so.
    both = claim(exactly("a", adminAccess=True), exactly("b", adminAccess=True))
    assert names(run([both], [THREE])[0]) == ["a=gpu-0", "b=gpu-1"]


def test_claims_of_one_pod_are_allocated_together() -> None:
    selectors = cel(f'"{DRIVER}" == device.driver', f'device.attributes["{DRIVER}"].numa == 0')
    picky = claim(exactly(selectors=selectors), name="picky")
    first, second = run([claim(exactly()), picky], [NUMA])
    assert names(first) == ["r=gpu-1"]  # gpu-0 is left to the other one
    assert names(second) == ["r=gpu-0"]


def test_configuration_of_classes_and_claim_is_passed_on() -> None:
    opaque = {"driver": DRIVER, "parameters": {"kind": "X", "deep": {"n": 1}}}
    both = device_class(DRIVER, config=[{"opaque": opaque}])
    other = device_class("other", f'device.driver == "{DRIVER}"', config=[{"opaque": opaque}])
    mine = {"driver": DRIVER, "parameters": {"kind": "Y"}}
    wanted = claim(
        exactly("a"), exactly("b", "other"), exactly("c"),
        config=[{"opaque": mine}, {"requests": ["b"], "opaque": mine}],
    )  # fmt: skip
    (result,) = run([wanted], [THREE], [both, other])
    assert result.devices is not None
    config = [(c.source, c.requests, c.opaque) for c in result.devices.config or ()]
    assert [(source, requests) for source, requests, _ in config] == [
        ("FromClass", ["a", "c"]),
        ("FromClass", ["b"]),
        ("FromClaim", None),
        ("FromClaim", ["b"]),
    ]
    assert config[0][2] is not None
    assert config[0][2].parameters == {"kind": "X", "deep": {"n": 1}}
    assert result.nodeSelector is not None
    terms = result.nodeSelector.nodeSelectorTerms[0].matchFields
    assert terms is not None
    assert terms[0].values == ["n1"]


def test_configuration_of_an_alternative_that_was_not_chosen_is_left_out() -> None:
    opaque = {"driver": DRIVER, "parameters": {}}
    wanted = claim(
        {"name": "r", "firstAvailable": [
            {"name": "big", "deviceClassName": DRIVER, "count": 9},
            {"name": "small", "deviceClassName": DRIVER},
        ]},
        config=[{"requests": ["r/big"], "opaque": opaque},
                {"requests": ["r/small"], "opaque": opaque}],
    )  # fmt: skip
    (result,) = run([wanted], [THREE])
    assert result.devices is not None
    assert [c.requests for c in result.devices.config or ()] == [["r/small"]]


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        (None, "r=clean"),
        ([{"key": "broken", "operator": "Exists"}], "r=tainted"),
        ([{"operator": "Exists"}], "r=tainted"),
        ([{"key": "broken", "value": "yes"}], "r=tainted"),
        ([{"key": "broken", "value": "no"}], "r=clean"),
        ([{"key": "broken", "operator": "Exists", "effect": "NoExecute"}], "r=clean"),
        ([{"key": "other", "operator": "Exists"}], "r=clean"),
    ],
)
def test_taints_keep_requests_away_that_do_not_tolerate_them(
    tolerations: list[dict[str, str]] | None, expected: str
) -> None:
    taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
    offered = resource_slice(device("tainted", taints=[taint]), "clean")
    wanted = claim(exactly(tolerations=tolerations))
    assert names(run([wanted], [offered])[0]) == [expected]
    harmless = resource_slice(device("tainted", taints=[{**taint, "effect": "None"}]), "clean")
    assert names(run([claim(exactly())], [harmless])[0]) == ["r=tainted"]


COUNTERS = resource_slice(
    name="s0", count=2, sharedCounters=[{"name": "gpu", "counters": {"memory": {"value": "40Gi"}}}]
)


def partition(name: str, memory: str) -> dict[str, Any]:
    uses = {"counterSet": "gpu", "counters": {"memory": {"value": memory}}}
    return device(name, consumesCounters=[uses])


def test_partitions_share_counters() -> None:
    parts = resource_slice(
        partition("whole", "40Gi"), partition("half-0", "20Gi"), partition("half-1", "20Gi"),
        count=2,
    )  # fmt: skip
    both = [COUNTERS, parts]
    assert names(run([claim(exactly())], both)[0]) == ["r=whole"]
    assert names(run([claim(exactly(count=2))], both)[0]) == ["r=half-0", "r=half-1"]
    half = {DeviceId(DRIVER, "n1", "half-0"): "default/other"}
    assert names(run([claim(exactly())], both, in_use=half)[0]) == ["r=half-1"]
    told = failure([claim(exactly(count=2))], both, in_use=half)
    assert "every request can be satisfied alone" in told or "1 free" in told


def test_only_complete_pools_of_the_newest_generation_count() -> None:
    old, new = resource_slice("old"), resource_slice("new", name="s2", generation=2, count=2)
    told = failure([claim(exactly())], [old, new])
    assert "pool gpu.example.com/n1 is being updated: 1 of 2 slices" in told
    rest = resource_slice("rest", name="s1", generation=2, count=2)
    assert names(run([claim(exactly(count=2))], [old, new, rest])[0]) == ["r=rest", "r=new"]
    twice = resource_slice("new", name="s3", generation=2, count=2)
    assert "invalid: duplicate device name new" in failure([claim(exactly())], [new, twice])
    # Another pool is still good; but what "all" is cannot be known.
    other = resource_slice("gpu-0", pool="other")
    assert names(run([claim(exactly())], [new, other])[0]) == ["r=gpu-0"]
    everything = [claim(exactly(allocationMode="All"))]
    assert "asks for all devices: pool" in failure(everything, [new, other])


@pytest.mark.parametrize(
    ("wanted", "slices", "in_use", "text"),
    [
        (
            claim(exactly(count=2)),
            [resource_slice("gpu-0", "gpu-1")],
            ONE_USED,
            "ResourceClaim gpu: no device: request r: 2 of class gpu.example.com wanted, 1 free "
            "(gpu.example.com/n1/gpu-0 is in use by default/other)",
        ),
        (claim(exactly()), [], {}, "1 of class gpu.example.com wanted, 0 free (no ResourceSlice"),
        (
            claim(exactly(count=3)),
            [resource_slice("gpu-0", "gpu-1")],
            {},
            "3 of class gpu.example.com wanted, 2 free (pool gpu.example.com/n1)",
        ),
        (
            claim(exactly()),
            [resource_slice("x", driver="nic.example.com")],
            {},
            "0 free (none of pool nic.example.com/n1 matches)",
        ),
        (
            claim(exactly()),
            [resource_slice(device("x", taints=[{"key": "k", "effect": "NoExecute"}]))],
            {},
            "has taint k:NoExecute",
        ),
        (
            claim(exactly(count=3), **SAME),
            [NUMA],
            {},
            "every request can be satisfied alone, but not all of them together",
        ),
        (
            claim(exactly(allocationMode="All")),
            [THREE],
            ONE_USED,
            "all of class gpu.example.com wanted, 2 free (gpu.example.com/n1/gpu-0 is in use",
        ),
        (claim(exactly(class_name="nope")), [THREE], {}, "there is no DeviceClass nope"),
        (claim(exactly(count=33)), [THREE], {}, "33 exceeds the claim limit of 32"),
        (claim(exactly(allocationMode="Some")), [THREE], {}, "unsupported count mode Some"),
        (claim({"name": "r"}), [THREE], {}, "request r: unsupported request type"),
        (claim(exactly(), constraints=[{}]), [THREE], {}, "constraint #0: empty constraint"),
        (
            claim(exactly(), **SAME),
            [resource_slice(device("x", attributes={"numa": {"ints": [0, 1]}}))],
            {},
            "is a list, which this agent does not compare",
        ),
        (
            claim(exactly()),
            [resource_slice(device("x", bindingConditions=["Ready"], bindsToNode=True))],
            {},
            "gpu.example.com/n1/x has binding conditions (KEP-5007)",
        ),
        (
            claim(exactly()),
            [resource_slice(device("x", allowMultipleAllocations=True))],
            {},
            "may be allocated several times (KEP-5075)",
        ),
        (
            claim(exactly()),
            [resource_slice(partition("x", "1"))],
            {},
            "invalid: device x: no counter memory in set gpu",
        ),
        (
            claim(exactly()),
            [resource_slice(device("x", attributes={"odd": {}}))],
            {},
            "invalid: attribute odd has no value",
        ),
    ],
)
def test_says_why_there_is_none(
    wanted: ResourceClaim, slices: list[ResourceSlice], in_use: dict[DeviceId, str], text: str
) -> None:
    told = failure([wanted], slices, in_use=in_use)
    assert text in told
    assert "\n" not in told


def test_a_hostile_claim_ends_within_a_number_of_steps() -> None:
    many = [device(f"d{i:03}", attributes={"numa": i % 2, "odd": i}) for i in range(64)]
    wanted = claim(
        exactly("a", count=16), exactly("b", count=16),
        constraints=[{"matchAttribute": f"{DRIVER}/odd", "requests": ["a", "b"]},
                     {"distinctAttribute": f"{DRIVER}/numa"}],
    )  # fmt: skip
    assert "gpu" in failure([wanted], [resource_slice(*many)])
    # Every device but one for the last request fits: the search goes through all combinations.
    wanted = claim(
        exactly("a", count=15), exactly("b", count=17), constraints=[
            {"distinctAttribute": f"{DRIVER}/odd"},
            {"matchAttribute": f"{DRIVER}/numa", "requests": ["b"]},
        ],
    )  # fmt: skip
    few = resource_slice(*many[:32])
    assert "no devices found in 5000 steps" in failure([wanted], [few], max_steps=5000)


def test_a_pod_may_have_more_devices_than_python_nests_calls() -> None:
    many = [resource_slice(*(f"d{i:03}" for i in range(128)), pool=f"p{n:02}") for n in range(9)]
    wanted = [claim(exactly(count=32), name=f"c{n}") for n in range(32)]
    results = run(wanted, many)
    taken = {
        (r.pool, r.device) for one in results if one.devices for r in one.devices.results or ()
    }
    assert len(taken) == 1024
