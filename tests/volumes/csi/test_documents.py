"""CSI without an API server: the example of docs/volumes.md, from YAML to the driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from kubelet_trio.objects import LocalObjects, object_key
from kubelet_trio.sources import load_manifest
from kubelet_trio.testing.csi import calls
from kubelet_trio.volumes import VolumeError
from tests.volumes.csi.world import DRIVER, World

PAGE = Path(__file__).parents[3] / "docs" / "volumes.md"


def example() -> str:
    blocks: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "kind: CSIDriver" in block]
    return block.replace("hostpath.csi.k8s.io", DRIVER)


class Standalone(World):
    """A node whose objects are documents."""

    def load(self, text: str) -> None:
        self.manifest = load_manifest(text.encode(), "web.yaml", node_name="node")
        documents = LocalObjects()
        documents.apply({object_key(value): value for value in self.manifest.objects})
        self.objects = documents  # type: ignore[assignment]  # its own store, of documents
        self.restart()


async def test_the_example_of_the_page_is_mounted_and_undone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Standalone(tmp_path, ("STAGE_UNSTAGE_VOLUME",))
    node.load(example())
    (pod,) = node.manifest.pods
    async with node.running():
        await node.volumes.mount(pod)
        published = [call for call in node.rules.log if call.method == calls.PUBLISH]
        assert len(published) == 2
        assert sorted(Path(call.path).parent.name for call in published) == ["scratch", "web-data"]
        assert list(node.rules.staged()) == ["web-data"]
        await node.volumes.unmount(pod_uid(pod))
        assert node.left_on_disk() == []
    node.rules.check()


async def test_a_missing_document_is_named_by_the_event(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Standalone(tmp_path, ("STAGE_UNSTAGE_VOLUME",))
    documents = [d for d in example().split("---\n") if "kind: Secret" not in d]
    node.load("---\n".join(documents))
    (pod,) = node.manifest.pods
    async with node.running():
        with pytest.raises(VolumeError, match=r"unmounted volumes=\[data scratch\]"):
            await node.volumes.mount(pod)
    assert any("failed to find the secret web-keys" in text for text in node.events.texts)
    node.rules.check()
