"""What is read of a node, as one of version 2 was."""

from __future__ import annotations

from pathlib import Path

from kubelet_trio.pressure import FileSystems, NodeSignals
from kubelet_trio.pressure.memory_events import Kills, MemoryEventsV2
from tests.harness import recorded

KI, MI = 1 << 10, 1 << 20


def test_a_node_of_version_2_is_read(tmp_path: Path) -> None:
    node = recorded.recorded_node(tmp_path)
    signals = NodeSignals(node.host, lambda: recorded.PODS, node.proc)
    seen = signals.observe(FileSystems(str(tmp_path)))
    memory, pods, pids = (
        seen[name] for name in ("memory.available", "allocatableMemory.available", "pid.available")
    )
    assert memory.capacity == 2021568 * KI
    # The root tells no sum: all that is not free counts, less files that nobody has used lately.
    free = 1577596 * KI
    assert free < memory.available < memory.capacity
    assert pods.capacity == 1440940032
    assert pods.capacity - 3403776 <= pods.available < pods.capacity
    assert (pids.capacity, pids.available) == (15641, 15641 - 198)


def test_a_pods_own_memory_is_read(tmp_path: Path) -> None:
    node = recorded.recorded_node(tmp_path)
    signals = NodeSignals(node.host, proc=node.proc)
    used = signals.working_set(recorded.POD)
    assert used is not None
    assert 0 < used <= 561152
    assert signals.processes(recorded.POD) == 3
    assert signals.working_set("/kubepods.slice/none") is None
    assert "allocatableMemory.available" not in signals.observe(FileSystems(str(tmp_path)))


def test_a_kill_in_a_container_of_systemd_is_counted(tmp_path: Path) -> None:
    node = recorded.recorded_node(tmp_path)
    files = MemoryEventsV2(node.host, node.proc)
    try:
        files.add(recorded.CONTAINER, recorded.CONTAINER_PID)
        # The limit that was reached is its pod's, so its own count of that is zero.
        assert files.read(recorded.CONTAINER) == Kills(1, 0)
    finally:
        files.close()
