from __future__ import annotations

import re
from pathlib import Path

import pytest

from kubelet_trio.sources.manifest.support import NOT_YET, STATIC_POD
from tests.harness.pod_files import load_pods

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    assert load_pods(path.read_bytes(), str(path), node_name="node")


def test_the_reference_names_every_field_that_is_refused() -> None:
    text = (ROOT / "docs" / "manifests.md").read_text()
    named = set(re.findall(r"`([^`\n]+)`", text))
    for path in [*NOT_YET, *STATIC_POD]:
        field = path.removeprefix("spec.").replace("<c>[].", "containers[].")
        kind = path.rpartition(".")[2]
        assert field in named or path in named or kind in named, path


@pytest.mark.parametrize("page", ["manifests.md", "volumes.md"])
def test_manifests_in_the_reference_load(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        assert load_pods(block.encode(), page, node_name="node")
