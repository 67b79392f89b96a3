"""The pages about the library are true: the reference is current, its examples work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio import Kubelet
from kubelet_trio.embed.intake import read_pod
from kubelet_trio.testing import FakeRuntime

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "embedding.md").read_text()


def test_the_reference_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "gen-api-docs"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_pod_of_the_guide_is_one() -> None:
    (text,) = re.findall(r'POD = """(.*?)"""', GUIDE, re.DOTALL)
    pod, _ = read_pod(text, node_name="node", instance="i")
    assert pod.metadata is not None
    assert pod.metadata.name == "web"


async def test_the_test_of_the_guide_passes(
    kubelet: Kubelet, fake_runtime: FakeRuntime, autojump_clock: MockClock
) -> None:
    code = re.findall(r"(async def test_a_crashing.*?)```", GUIDE, re.DOTALL)[0]
    names = {"trio": trio}
    exec(code, names)
    test = names["test_a_crashing_service_backs_off"]
    await test(kubelet, fake_runtime, autojump_clock)  # type: ignore[operator]


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", GUIDE))))
def test_every_link_of_the_guide_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
