"""A real agent with two pods, and a real browser that looks at its page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import PROGRAM, Page
from tests.faults.bed import Bed
from tests.harness.ports import free_port

# A tag and a script that would tell of themselves, were they ever put in as HTML.
HOSTILE = "<img src=x onerror='document.body.dataset.owned=1'>"
SHOTS = os.environ.get("NODE_PAGE_SHOTS", "")  # a directory: screenshots are kept there


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bed, str]]:
    """An agent on the process runtime, and the address of its page."""
    port = free_port()
    bed = Bed(tmp_path_factory.mktemp("node"), None, arguments=("--ui-port", str(port)))
    try:
        bed.agent.start()
        web = bed.pod("web")
        web["spec"]["containers"][0]["command"] = [
            "sh",
            "-c",
            f'trap "exit 0" TERM; echo "{HOSTILE}"; echo first; '
            "while :; do echo again; sleep 1 & wait $!; done",
        ]
        crash = bed.pod("crash")
        crash["spec"]["containers"][0]["command"] = ["sh", "-c", f'echo "{HOSTILE}"; exit 3']
        crash["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
        bed.agent.put(web)
        bed.agent.put(crash)
        bed.agent.wait_ready("web")
        yield bed, f"http://127.0.0.1:{port}/ui/"
    finally:
        bed.close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    if PROGRAM is None:
        pytest.skip("no chromium here")
    opened = Page(tmp_path / "profile")
    yield opened
    opened.close()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    directory = Path(SHOTS) if SHOTS else tmp_path
    directory.mkdir(parents=True, exist_ok=True)
    return directory
