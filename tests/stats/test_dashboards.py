"""What the mixin's dashboards ask of `/metrics/cadvisor` has data, on both versions of cgroups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.harness.mixin import OF_A_NODE, OF_DISKS

GOLDEN = Path(__file__).parent / "golden"  # byte by byte what the page is: `test_cadvisor_golden`
OF_THE_SCRAPE = ("job", "metrics_path")  # labels that Prometheus adds
ASKED = [text for text in (*OF_A_NODE, *OF_DISKS) if "/metrics/cadvisor" in text]


def samples(version: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for line in (GOLDEN / f"cadvisor-{version}.txt").read_text().splitlines():
        found = re.match(r"(\w+)(?:\{(.*)\})? ", line)
        if found is not None and not line.startswith("#"):
            yield found[1], dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[2] or ""))


def matches(labels: Mapping[str, str], matchers: str) -> bool:
    for name, operator, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', matchers):
        has = labels.get(name, "")
        if (
            name not in OF_THE_SCRAPE
            and not {
                "=": has == value,
                "!=": has != value,
                "=~": re.fullmatch(value, has) is not None,
            }[operator]
        ):
            return False
    return True


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("expression", ASKED)
def test_each_selector_has_a_sample(expression: str, version: str) -> None:
    selectors = re.findall(r"(\w+)\{([^}]*)\}", expression)
    assert selectors
    grouped = re.search(r"by \(([^)]*)\)", expression)
    labels = set(grouped[1].split(", ")) - {"cluster"} if grouped is not None else set()
    page = list(samples(version))
    for name, matchers in selectors:
        found = [has for family, has in page if family == name and matches(has, matchers)]
        assert found, name
        assert all(labels <= has.keys() for has in found), name
