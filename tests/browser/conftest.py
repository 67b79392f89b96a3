"""A real agent with some pods, and a real browser that looks at its page."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import PROGRAM, Page
from tests.faults.bed import Bed
from tests.harness.ports import free_port

# A tag and a script that would tell of themselves, were they ever put in as HTML.
HOSTILE = "<img src=x onerror='document.body.dataset.owned=1'>"
SECRET = "hunter2-is-not-shown"
SHOTS = os.environ.get("NODE_PAGE_SHOTS", "")  # a directory: screenshots are kept there
AXE = "axe-core@4.10.3"  # checks accessibility; from npm, and never part of the package
APPEARANCES = [  # name, width and whether it is dark
    ("light", 1440, False),
    ("dark", 1440, True),
    ("phone", 390, False),
    ("phone-dark", 390, True),
]
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kubelet-trio" / "axe"


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bed, str]]:
    """An agent on the process runtime, and the address of its page."""
    port = free_port()
    bed = Bed(
        tmp_path_factory.mktemp("node"),
        None,
        arguments=("--ui-port", str(port), "--ui-actions"),
    )
    try:
        bed.agent.start()
        for pod in _pods(bed):
            bed.agent.put(pod)
        bed.agent.wait_ready("web")
        yield bed, f"http://127.0.0.1:{port}/ui/"
    finally:
        bed.close()


def _pods(bed: Bed) -> Iterator[dict[str, Any]]:
    web = _scripted(
        bed,
        "web",
        f'trap "exit 0" TERM; echo "{HOSTILE}"; printf "\\033[32mfirst\\033[0m\\n"; '
        "while :; do echo again; sleep 1 & wait $!; done",
    )
    main = web["spec"]["containers"][0]
    main["env"].append({"name": "PASSWORD", "value": SECRET})
    main["resources"] = {
        "requests": {"cpu": "50m", "memory": "8Mi"},
        "limits": {"cpu": "200m", "memory": "64Mi"},
    }
    main["livenessProbe"] = {"exec": {"command": ["true"]}, "periodSeconds": 5}
    web["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    main["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    yield web
    crash = _scripted(bed, "crash", f'echo "{HOSTILE}"; exit 3')
    crash["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
    yield crash
    quiet = bed.pod("quiet-with-a-name-that-is-rather-long-for-a-column")
    quiet["metadata"]["namespace"] = "shop"
    yield quiet


def _scripted(bed: Bed, name: str, script: str) -> dict[str, Any]:
    pod: dict[str, Any] = bed.pod(name)
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    return pod


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


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, from npm's registry or the cache of an earlier run."""
    kept = _CACHE / f"{AXE}.min.js"
    if not kept.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        try:
            packed = subprocess.run(
                ["npm", "pack", "--silent", AXE],
                cwd=_CACHE,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout.split()[-1]
        except (OSError, subprocess.SubprocessError, IndexError) as exc:
            pytest.skip(f"axe-core cannot be had from npm: {exc}")
        with tarfile.open(_CACHE / packed) as archive:
            found = archive.extractfile("package/axe.min.js")
            assert found is not None
            kept.write_bytes(found.read())
    return kept.read_text("utf-8")
