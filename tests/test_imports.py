"""What an import brings along: it is part of every node's footprint."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(code: str) -> set[str]:
    """Return the top-level names of what a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_models_come_without_the_client() -> None:
    modules = loaded_by("import kubelet_trio\nimport lightkube.models.core_v1")
    assert "lightkube.models.core_v1" in modules
    assert not {"httpx2", "asyncio", "lightkube.core.client"} & modules


@pytest.mark.parametrize(
    "code",
    [
        "import kubelet_trio, lightkube; lightkube.Client",
        "import kubelet_trio; from lightkube import Client, ApiError",
        "import lightkube, kubelet_trio; lightkube.Client",
        "import kubelet_trio, lightkube.models.core_v1; from lightkube import KubeConfig",
    ],
)
def test_other_code_still_finds_the_client(code: str) -> None:
    assert "lightkube.core.client" in loaded_by(code)


def test_the_daemon_imports_no_http_client_and_nothing_built_on_asyncio() -> None:
    # asyncio itself is there: structlog imports it. Nothing of ours does, and no loop runs.
    modules = loaded_by("import kubelet_trio.daemon")
    assert not {"httpx2", "yaml", "kubernetes_asyncio", "grpclib"} & modules
