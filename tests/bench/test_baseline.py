"""A baseline is read whole or refused by name, and a run is told what got worse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.baseline import (
    PATH,
    Baseline,
    BaselineError,
    compare,
    encode,
    notes,
    read,
    report,
    table,
)
from bench.figures import FIGURES, Expected, Run, Samples

NOW = {"python": "3.11.7", "containerd": "1.6.20", "cores": "2", "cgroups": "v1"}
BASELINE = Baseline(
    {**NOW, "version": "0.1.0", "revision": "abc", "date": "2026-11-28", "load before": "0.1"},
    {"one.started": Expected(1.0, 0.1), "rest.rss": Expected(40.0, 0.5)},
)
SAME: Run = {"one.started": Samples((0.2, 0.2), (0.2, 0.2)), "rest.rss": Samples((40.2,))}
WORSE: Run = {"one.started": Samples((0.3, 0.3), (0.2, 0.2)), "rest.rss": Samples((40.2,))}


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(encode(BASELINE))
    assert read(path) == BASELINE


def test_the_committed_baseline_has_every_figure_and_its_conditions() -> None:
    committed = read(PATH)
    assert set(committed.figures) == set(FIGURES)
    told = {"version", "revision", "date", "python", "kernel", "cores", "containerd", "load before"}
    assert told <= set(committed.conditions)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 2}, "format is 2"),
        ({"figures": []}, r"figures is \[\], not an object"),
        ({"conditions": None}, "conditions is None"),
        ({"figures": {"death": 3}}, "figures.death is 3, not an object"),
        ({"figures": {"death": {"value": 1}}}, "figures.death.tolerance is None"),
        ({"figures": {"death": {"value": "1", "tolerance": 0}}}, "figures.death.value is '1'"),
        ({"figures": {"death": {"value": 1, "tolerance": -1}}}, "figures.death.tolerance is -1"),
        (
            {"figures": {"death": {"value": float("nan"), "tolerance": 0}}},
            "figures.death.value is nan",
        ),
    ],
)
def test_bad_input_is_refused_by_name(
    change: Mapping[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**json.loads(encode(BASELINE)), **change}))
    with pytest.raises(BaselineError, match=rf"other\.json: {complaint}"):
        read(path)


@pytest.mark.parametrize(("text", "complaint"), [("{", "is not JSON"), ("[]", "format is None")])
def test_what_is_no_baseline_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(BaselineError, match=complaint):
        read(tmp_path / "other.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"gone\.json: No such file"):
        read(tmp_path / "gone.json")


def test_a_run_is_compared_in_the_order_of_the_table() -> None:
    found = compare({"modules": Samples((700.0,)), **WORSE}, BASELINE, NOW)
    assert [(row.key, row.verdict) for row in found] == [
        ("one.started", "worse"),
        ("rest.rss", "same"),
        ("modules", "new"),
    ]
    assert (found[0].ours, found[0].floor) == (0.3, 0.2)
    assert found[0].compared == pytest.approx(1.5)


def test_the_table_says_ratio_baseline_and_verdict() -> None:
    lines = list(table(compare(WORSE, BASELINE, NOW)))
    assert lines[2] == "| one pod, written to started | 0.3 s | 0.2 | 1.5 | 1 ± 0.1 | **worse** |"
    assert lines[3] == "| RSS at rest | 40.2 MB |  | 40.2 | 40 ± 0.5 |  |"


def test_what_got_worse_is_said() -> None:
    said = list(notes(compare(WORSE, BASELINE, NOW), BASELINE, NOW))
    assert said == [
        "baseline: 0.1.0 at abc, 2026-11-28, load average 0.1",
        "worse: one pod, written to started: 1.5 of the floor, was 1 (tolerance 0.1)",
    ]


def test_a_run_that_is_as_before_says_so() -> None:
    assert list(notes(compare(SAME, BASELINE, NOW), BASELINE, NOW))[-1] == "nothing got worse"


def test_other_conditions_and_missing_figures_are_said() -> None:
    now = {**NOW, "python": "3.13.1", "load before": "7.5"}
    said = list(notes(compare({"rest.rss": SAME["rest.rss"]}, BASELINE, now), BASELINE, now))
    assert "not alike: python is 3.13.1, the baseline's 3.11.7" in said
    assert any(line.startswith("load average 7.5") for line in said)
    assert "not measured in this run: one pod, written to started" in said


def test_a_machine_that_is_too_busy_is_believed_only_what_it_can_tell() -> None:
    expected = Expected(1.0, 0.1)
    baseline = Baseline(
        NOW, dict.fromkeys(("death", "crowd.ready", "crowd.rss", "rest.cpu"), expected)
    )
    run: Run = {
        "death": Samples((2.0,) * 3, (1.0,) * 3),  # often enough, beside the floor
        "crowd.ready": Samples((2.0,), (1.0,)),
        "crowd.rss": Samples((2.0,)),
        "rest.cpu": Samples((2.0,)),
    }
    busy = {**NOW, "load before": "4.1"}
    verdicts = {row.key: row.verdict for row in compare(run, baseline, busy)}
    assert verdicts == {
        "death": "worse",
        "crowd.ready": "unsure",
        "crowd.rss": "worse",
        "rest.cpu": "unsure",
    }
    calm = {**NOW, "load before": "3.9"}
    assert {row.verdict for row in compare(run, baseline, calm)} == {"worse"}


def test_without_a_baseline_nothing_is_worse() -> None:
    found = compare(WORSE, None, NOW)
    assert {row.verdict for row in found} == {"new"}
    assert list(notes(found, None, NOW)) == ["there is no baseline: --update-baseline writes one"]


def test_the_report_for_programs_is_json_with_all_samples() -> None:
    told = json.loads(json.dumps(report(compare(WORSE, BASELINE, NOW), WORSE, NOW)))
    started = told["figures"]["one.started"]
    assert started["samples"] == [pytest.approx(1.5)] * 2
    assert started["baseline"] == {"value": 1.0, "tolerance": 0.1}
    assert (started["verdict"], told["conditions"]) == ("worse", NOW)
