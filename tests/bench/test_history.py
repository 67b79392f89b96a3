"""The plots of docs/performance.md are those of the committed data, which is refused if damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.history import (
    PAGE,
    PATH,
    PLOTS,
    TITLES,
    Entry,
    HistoryError,
    add,
    encode,
    entry_of,
    page,
    plots,
    read,
)

OLD = Entry("0.1.0", "aaa", "2026-11-22", True, "load 5", {"death": 0.2}, {"death": 0.1})
NEW = Entry("0.2.0", "bbb", "2026-12-01", False, "idle", {"death": 0.3})
LINE = json.loads(encode([OLD]))


def test_the_plots_are_up_to_date_with_the_data() -> None:
    drawn = plots(read(PATH))
    there = {path.name: path.read_text() for path in PLOTS.glob("*.svg")}
    assert there == drawn, "run python -m bench history"


def test_the_page_lists_every_measurement_and_shows_every_plot() -> None:
    text = PAGE.read_text()
    assert page(text, read(PATH)) == text, "run python -m bench history"
    assert set(re.findall(r"\(plots/([\w.]+)\)", text)) == {path.name for path in PLOTS.iterdir()}


def test_every_figure_is_in_one_plot() -> None:
    everything = Entry("1", "ccc", "2026-12-02", False, "", dict.fromkeys(TITLES, 1.0))
    drawn = "".join(plots([everything]).values())
    assert {title: drawn.count(f">{title}<") for title in TITLES.values()} == dict.fromkeys(
        TITLES.values(), 1
    )


def test_a_plot_is_xml_that_loads_nothing() -> None:
    for text in plots(read(PATH)).values():
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg")
        assert not re.search(r"href|<script|<image", text)


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(encode([OLD, NEW]))
    assert read(path) == [OLD, NEW]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"date": 3}, "date is 3, not a text"),
        ({"busy": "no"}, "busy is 'no'"),
        ({"figures": None}, "figures is None, not an object"),
        ({"figures": {"speed": 1}}, "figures: there is no figure speed"),
        ({"floor": {"death": "fast"}}, "floor.death is 'fast', not a number"),
        ({"weather": "fair"}, "no such field: weather"),
    ],
)
def test_bad_input_is_refused_by_line_and_name(
    change: Mapping[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(encode([OLD]) + json.dumps({**LINE, **change}) + "\n")
    with pytest.raises(HistoryError, match=rf"other\.jsonl:2: {complaint}"):
        read(path)


def test_a_line_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text("{\n")
    with pytest.raises(HistoryError, match=r"other\.jsonl:1 is not JSON"):
        read(path)


def test_a_measurement_of_the_same_revision_and_day_is_replaced() -> None:
    again = Entry("0.1.0", "aaa", "2026-11-22", False, "idle", {"death": 0.15})
    assert add([OLD, NEW], again) == [NEW, again]


@pytest.mark.parametrize(
    ("load", "busy", "left"),
    [
        ("0.31", False, {"death", "rest.rss"}),
        ("1.90", True, {"death", "rest.rss"}),
        ("7.31", True, {"rest.rss"}),  # more to do than it has cores: its times say nothing
    ],
)
def test_a_report_of_the_quick_bench_makes_an_entry(load: str, busy: bool, left: set[str]) -> None:
    conditions = {
        "version": "0.2.0",
        "revision": "bbb",
        "date": "2026-12-01",
        "cores": "2",
        "cpu": "2 x AMD EPYC",
        "kernel": "6.18",
        "cgroups": "v1",
        "containerd": "1.6.20",
        "python": "3.11.7",
        "load before": load,
    }
    figures = {
        "death": {"ours": 0.204419, "floor": 0.1234},
        "rest.rss": {"ours": 40.2, "floor": None},
        "gone": {"ours": 1.0, "floor": None},
    }
    made = entry_of({"conditions": conditions, "figures": figures})
    everything = {"death": 0.2044, "rest.rss": 40.2}
    assert made.figures == {key: everything[key] for key in sorted(left)}
    assert set(made.floor) == left - {"rest.rss"}
    assert (made.revision, made.busy) == ("bbb", busy)
    assert f"load {load}" in made.conditions


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(HistoryError, match="no part from"):
        page("# Performance\n", [OLD])


def test_busy_machines_are_hollow_and_the_floor_is_beside() -> None:
    text = plots([OLD, NEW])["start.svg"]
    assert text.count('fill="#ffffff" stroke="#1f5fa8"') == 1
    assert "floor, 11-22 aaa: 0.1" in text
    assert "agent, 12-01 bbb: 0.3" in text
    assert "agent, 11-22 aaa: 2<" in plots([OLD, NEW])["floor.svg"]
