"""docs/configuration.md names every field, flag and gate. Run this file to rewrite its tables."""

from __future__ import annotations

import re
from pathlib import Path

from kubelet_trio.config import run_help
from kubelet_trio.config.show import field_table, flag_table, gate_table
from kubelet_trio.config.table import BY_FLAG

DOC = Path(__file__).parents[2] / "docs" / "configuration.md"
TABLES = {"fields": field_table, "flags": flag_table, "gates": gate_table}


def with_tables(text: str) -> str:
    for name, make in TABLES.items():
        block = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
        pattern = f"<!-- {name} -->.*<!-- /{name} -->"
        text = re.sub(pattern, block.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


def test_the_tables_of_the_docs_are_those_of_the_code() -> None:
    text = DOC.read_text()
    assert all(f"<!-- {name} -->" in text for name in TABLES)
    assert text == with_tables(text), f"run python -m tests.config.{Path(__file__).stem}"


def test_the_help_of_run_names_every_flag() -> None:
    lines = run_help(every=True).splitlines()
    named = [word.strip() for line in lines for word in line.split(" ") if word[:2] == "--"]
    for flag in BY_FLAG:
        assert f"--{flag}" in named, flag


def test_the_short_help_of_run_has_the_common_flags_and_the_way_to_the_others() -> None:
    text = run_help()
    assert len(text.splitlines()) < 60
    assert "--pod-manifest-path" in text
    assert "--help-all" in text
    assert "--cpu-manager-policy" not in text


if __name__ == "__main__":
    DOC.write_text(with_tables(DOC.read_text()))
