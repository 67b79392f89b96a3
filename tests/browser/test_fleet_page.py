"""The page of several nodes: a real agent, one that is gone, and Chromium."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.browser.test_node_page import findings
from tests.faults.bed import Bed


@pytest.fixture
def fleet(node: tuple[Bed, str], tmp_path: Path) -> Iterator[str]:
    """The address of a fleet of two nodes, of which one is gone."""
    bed, _ = node
    root = bed.agent.base / "root"
    program = "from kubelet_trio.cli import main; main()"
    places = [f"here=unix:{root}", f"gone=unix:{tmp_path}"]
    with subprocess.Popen(
        [sys.executable, "-c", program, "fleet", *places],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.mark.parametrize(("name", "width", "dark"), [("light", 1280, False), ("dark", 390, True)])
def test_all_nodes_and_their_pods_are_shown_bad_first(
    fleet: str, page: Page, shots: Path, axe: str, name: str, width: int, dark: bool
) -> None:
    page.look_like(width=width, height=900, dark=dark)
    page.call("Page.setBypassCSP", enabled=True)  # for axe-core, which is given by the test
    page.open(fleet)
    page.wait("Number(document.body?.dataset.looks) >= 2")
    nodes = "[...document.querySelectorAll('.node')].map((n) => n.dataset.node)"
    page.wait("/CrashLoopBackOff/.test(document.querySelector('#fleet-pods tbody tr').innerText)")
    assert page.evaluate(nodes) == ["gone", "here"]
    text = page.evaluate("document.body.innerText")
    assert "No such file or directory" in text
    assert "2 nodes, 2 not well" in text
    link = page.evaluate("document.querySelector('#fleet-pods tbody a').href")
    assert "/ui/#/pod/default/crash-" in link
    page.screenshot(shots / f"fleet-{name}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert findings(page, axe) == []
    assert page.complaints == []
    assert [u for u in page.asked if not u.startswith((fleet, "data:"))] == []
