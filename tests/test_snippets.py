"""Every block of code in README.md and docs/ is tried, here or where a table says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from kubelet_trio.cli.tables import EVENT_COLUMNS, POD_COLUMNS
from kubelet_trio.config.load import load_settings
from kubelet_trio.sources.manifest.load import load_manifest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "supervision.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Page, how the block begins -> the test that tries it, or why none can.
ELSEWHERE = {
    ("README.md", "python3 -m venv"): "tests/examples/test_readme.py",
    ("README.md", "$ cp examples/"): "its heads: test_the_recording_has_the_columns_of_today",
    ("docs/cli.md", "curl --unix-socket"): "needs an agent at its default place",
    ("docs/configuration.md", "kubelet-trio run --config"): "needs a node's own directories",
    ("docs/embedding.md", "import trio\nfrom"): "tests/embed/test_docs.py",
    ("docs/embedding.md", "config = KubeletConfig"): "tests/embed/test_docs.py",
    ("docs/embedding.md", 'DISK = """'): "tests/embed/test_plugins.py",
    ("docs/embedding.md", "from kubelet_trio.lean"): "tests/test_lean.py",
    ("docs/embedding.md", "# pytest.ini"): "tests/embed/test_docs.py",
    ("docs/embedding.md", "# conftest.py"): "tests/embed/test_docs.py",
    ("docs/embedding.md", "# test_gateway.py"): "tests/embed/test_docs.py",
    ("docs/kubeadm.md", "[Unit]"): "tests/cluster/test_kubeadm.py",
    ("docs/kubeadm.md", "[Service]\nEnvironment"): "tests/cluster/test_kubeadm.py",
    ("docs/kubeadm.md", "[Service]\nExecStart"): "needs a unit of kubeadm's packages",
    ("docs/node-api.md", "kubectl get --raw"): "needs a cluster",
    ("docs/node-page.md", "kubelet-trio run --ui-port"): "needs a desktop",
    ("docs/node-page.md", "kubelet-trio run --ui-actions"): "tests/browser/test_actions.py",
    ("docs/node-page.md", "kubelet-trio fleet"): "tests/cli/test_fleet.py",
    ("docs/packages.md", "scripts/build-deb"): "tests/containerd/test_debian_package.py",
    ("docs/packages.md", "scripts/build-zipapp"): "tests/containerd/test_zipapp.py",
    ("docs/packages.md", "scripts/build-image"): "tests/containerd/test_image.py",
    ("docs/replay.md", "from kubelet_trio.replay"): "tests/replay/test_incidents.py",
    ("docs/metrics.md", "max by (node, UUID)"): "needs a GPU and its exporter",
    ("docs/process-runtime.md", "metadata:\n  annotations"): "a part of a manifest",
    ("docs/tracing.md", "receivers:"): "a collector is in no package registry",
    ("docs/rootless.md", "mkdir -p ~/.config"): "tests/containerd/test_rootless.py",
    (
        "docs/rootless.md",
        "cat >~/.config/kubelet-trio/containerd <<",
    ): "tests/containerd/test_rootless.py",
    ("docs/rootless.md", "cat >~/.config/systemd"): "tests/containerd/test_rootless.py",
    ("docs/volumes.md", "# mkdir -p /var/lib/kubelet/plugins"): "needs a driver's programs",
}


# Pages that a test follows from top to bottom, with every block.
FOLLOWED = {
    "docs/install.md": "tests/containerd/test_install.py",
    "docs/tutorial-laptop.md": "tests/examples/test_tutorials.py",
    "docs/tutorial-library.md": "tests/examples/test_tutorials.py",
    "docs/tutorial-operator.md": "tests/containerd/test_install.py",
}


class Block(NamedTuple):
    """One fenced block with a language."""

    page: str
    language: str
    text: str

    @property
    def excuses(self) -> list[tuple[str, str]]:
        return [key for key in ELSEWHERE if key[0] == self.page and self.text.startswith(key[1])]


def blocks() -> list[Block]:
    fence = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(str(page.relative_to(ROOT)), language, text)
        for page in PAGES
        for language, text in fence.findall(page.read_text())
        if language not in ("text", "mermaid")
    ]


BLOCKS = blocks()
TRIED = [block for block in BLOCKS if not block.excuses and block.page not in FOLLOWED]


@pytest.mark.parametrize("block", TRIED, ids=[f"{b.page}:{b.text[:20]!r}" for b in TRIED])
def test_a_block_is_what_the_agent_takes(block: Block, tmp_path: Path) -> None:
    assert block.language == "yaml", "nothing tries it: do so, or name it in ELSEWHERE"
    documents = [one for one in yaml.safe_load_all(block.text) if one]
    if documents[0]["kind"] == "KubeletConfiguration":
        (tmp_path / "kubelet.yaml").write_text(block.text)
        settings = load_settings(["--config", str(tmp_path / "kubelet.yaml")])
        assert not any("deprecated" in note for note in settings.notes)
        return
    loaded = load_manifest(block.text.encode(), block.page, node_name="node")
    pods = [one["metadata"]["name"] for one in documents if one["kind"] == "Pod"]
    assert len(loaded.pods) == len(pods)


def test_the_table_has_no_line_too_many() -> None:
    used = [key for block in BLOCKS for key in block.excuses]
    assert sorted(used) == sorted(ELSEWHERE), "each names one block"


@pytest.mark.parametrize("where", sorted({at for at in ELSEWHERE.values() if ".py" in at}))
def test_a_test_that_is_named_reads_the_page_or_does_what_it_says(where: str) -> None:
    assert (ROOT / where).exists()


@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_that_is_followed_is_named_by_its_test(page: str) -> None:
    assert any(block.page == page for block in BLOCKS)
    assert f'"{Path(page).name}"' in (ROOT / FOLLOWED[page]).read_text()


def test_the_recording_has_the_columns_of_today() -> None:
    (recording,) = (block.text for block in BLOCKS if block.language == "console" and
                    block.page == "README.md")  # fmt: skip
    heads = [re.split(r"\s{2,}", line) for line in recording.splitlines() if "NAMESPACE " in line]
    assert heads == [list(POD_COLUMNS), list(EVENT_COLUMNS)]
