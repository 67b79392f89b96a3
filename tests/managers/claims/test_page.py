"""The example of docs/local-claims.md, followed from the file to the device."""

from __future__ import annotations

import re
from pathlib import Path

from kubelet_trio.managers.claims import claim_documents
from kubelet_trio.managers.claims.allocation import (
    NodeFacts,
    Selectors,
    allocate,
    gather_pools,
)
from kubelet_trio.managers.claims.local.documents import make_claim, uses
from kubelet_trio.sources import load_manifest
from tests.managers.claims.allocation.worlds import names

PAGE = Path(__file__).parents[3] / "docs/local-claims.md"


def test_the_example_of_the_page_gets_the_device_that_it_says() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    manifest = load_manifest(example.encode(), str(PAGE), node_name="node1")
    documents, (pod,) = claim_documents(manifest.objects), manifest.pods
    claims = [make_claim(use, pod, documents) for use in uses(pod)]
    pools = gather_pools(documents.slices, NodeFacts("node1"))
    (result,) = allocate(claims, pools, documents.classes, {}, Selectors())
    assert names(result) == ["gpu=gpu-0"]
