"""Allocations are summed up by who makes them, and drawn with the largest first."""

from __future__ import annotations

import sys

import click
import pytest

from bench.allocations import Allocated, main, picture, summed, table

LIB = "/usr/lib/python3.11"
OWN = "/work/kubelet_trio"
RECORDS = [
    Allocated(9000, 100, "PYMALLOC_MALLOC", (f"{OWN}/pods/worker.py", f"{LIB}/runpy.py")),
    Allocated(2000, 1, "PYMALLOC_REALLOC", (f"{OWN}/lean.py",)),
    Allocated(4000, 2, "PYMALLOC_CALLOC", ("<frozen importlib._bootstrap>", f"{OWN}/lean.py")),
    Allocated(700, 2, "PYMALLOC_MALLOC", ("<string>", f"{LIB}/dataclasses.py")),
    Allocated(600, 3, "MALLOC", (f"{LIB}/site-packages/h2/connection.py",)),
    Allocated(300, 1, "PYMALLOC_MALLOC", ()),
    Allocated(262144, 1, "MMAP", (f"{OWN}/lean.py",)),
]


def test_allocations_are_those_of_the_innermost_module_with_a_file() -> None:
    use = summed(RECORDS)
    assert use.modules == {
        "kubelet_trio.pods": {"up to 512 bytes": 9000},
        "kubelet_trio.lean": {"larger": 2000},
        "code of modules, as it is read": {"larger": 4000},
        "dataclasses (of Python)": {"up to 512 bytes": 700},
        "h2": {"C libraries": 600},
        "the interpreter": {"up to 512 bytes": 300},
    }
    assert use.kinds == {"up to 512 bytes": 10000, "larger": 6000, "C libraries": 600}


def test_what_allocators_map_is_not_counted_twice() -> None:
    assert summed(RECORDS).mapped == 262144
    assert sum(summed(RECORDS).kinds.values()) == sum(r.size for r in RECORDS[:-1])


def test_the_table_has_every_column_for_the_modules_of_the_first() -> None:
    lines = list(table({"now": summed(RECORDS), "peak": summed(RECORDS[:1])}, 2))
    assert lines[2:4] == [
        "| `kubelet_trio.pods` | 9 | 9 |",
        "| `code of modules, as it is read` | 4 | 0 |",
    ]
    assert lines[-1] == "| mapped by allocators | 262 | 0 |"


def test_the_picture_has_the_largest_and_the_sum_of_the_others() -> None:
    drawn = picture("Who", summed(RECORDS), 2)
    assert "Who (KB, memray)" in drawn
    assert drawn.index("kubelet_trio.pods") < drawn.index("code of modules")
    assert "h2" not in drawn
    assert ">3.6</text>" in drawn  # all others


def test_without_memray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memray", None)
    with pytest.raises(click.ClickException, match=r"memray is not installed: pip install"):
        main(standalone_mode=False, args=[])
