"""The floor's bare calls, where the runtime fails one that has to be made again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from bench.bare import Floor
from kubelet_trio.cri import v1


class CallError(grpc.RpcError):  # type: ignore[misc]
    def details(self) -> str:
        return str(self)


class Cri:
    """Makes pods, and fails to stop each container for the first time."""

    def __init__(self, error: str) -> None:
        self.stopped: list[str] = []
        self.running: set[str] = set()
        self._error = error
        self._failed: set[str] = set()

    def run_sandbox(self, config: v1.PodSandboxConfig) -> str:
        assert config.metadata is not None
        return f"sandbox-{config.metadata.name}"

    def create_container(self, sandbox: str, *_: Any) -> str:
        return f"container-of-{sandbox}"

    def start_container(self, container: str) -> None:
        self.running.add(container)

    def stop_container(self, container: str, grace: int) -> None:
        if container not in self._failed:
            self._failed.add(container)
            raise CallError(self._error)
        self.running.discard(container)

    def stop_sandbox(self, sandbox: str) -> None:
        assert f"container-of-{sandbox}" not in self.running
        self.stopped.append(sandbox)

    def remove_stopped_sandbox(self, sandbox: str) -> None:
        assert sandbox in self.stopped


def ended(tmp_path: Path, error: str) -> list[str]:
    """Start and end two pods; return the sandboxes that were stopped."""
    cri = Cri(error)
    layout = SimpleNamespace(cgroup="/bench")
    runtime: Any = SimpleNamespace(cri=cri, containerd=SimpleNamespace(layout=layout))
    with ThreadPoolExecutor(2) as threads:
        floor = Floor(runtime, tmp_path, threads)
        floor.start(2)
        floor.end()
    return sorted(cri.stopped)


def test_a_container_whose_shim_has_ended_is_stopped_again(tmp_path: Path) -> None:
    error = 'failed to kill container "c": ttrpc: closed: unknown'
    assert ended(tmp_path, error) == ["sandbox-bare-0", "sandbox-bare-1"]


def test_any_other_failure_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="no such container"):
        ended(tmp_path, "no such container")
