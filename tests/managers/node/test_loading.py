"""Starting with checkpoints of other times: what is taken over, and what refuses the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.managers import (
    CheckpointKeeper,
    Machine,
    ManagerSettings,
    ManagerStateError,
    ResourceManagers,
    load_managers,
)
from kubelet_trio.managers.node import LoadedManagers
from kubelet_trio.model import Meter, PodUid, inline_offload
from tests.harness.hostile import no_hang
from tests.managers.node.machines import GI, static, two_nodes
from tests.managers.pods import container, pod

MACHINE = two_nodes()
CPU_FILE, MEMORY_FILE = "cpu_manager_state", "memory_manager_state"


def load(root: Path, settings: ManagerSettings, machine: Machine = MACHINE) -> LoadedManagers:
    loaded = load_managers(settings, root, lambda: machine)
    assert loaded is not None
    return loaded


def write(root: Path, settings: ManagerSettings, machine: Machine = MACHINE) -> None:
    """Write the checkpoints of a node with one pod, as its keeper would."""
    loaded = load(root, settings, machine)
    managers = ResourceManagers(loaded, CheckpointKeeper(root, inline_offload), Meter())
    assert managers.admit(pod(container("web", "2"))) is None
    for name, (provider, _) in loaded.providers.items():
        (root / provider.file).write_bytes(provider.encode(managers.state(name)))


def test_a_node_without_policies_has_no_managers(tmp_path: Path) -> None:
    assert load_managers(ManagerSettings(), tmp_path) is None


def test_a_node_without_policies_loads_no_manager() -> None:
    code = (
        "import sys, pathlib; from kubelet_trio.managers import ManagerSettings, load_managers; "
        "load_managers(ManagerSettings(), pathlib.Path('/nowhere')); "
        "names = ('cpus', 'memory', 'affinity', 'topology', 'node', 'devices'); "
        "print([n for n in names if 'kubelet_trio.managers.' + n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]"


def test_the_state_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    settings = static(memory=True, topology="single-numa-node")
    write(tmp_path, settings)
    loaded = load(tmp_path, settings)
    assert loaded.written == {"cpu", "memory"}
    managers = ResourceManagers(loaded, CheckpointKeeper(tmp_path, inline_offload), Meter())
    share = managers.share(PodUid("uid"), "web")
    assert (share.cpuset_cpus, share.cpuset_mems, share.no_quota) == ("1,9", "0", True)
    assert managers.share(PodUid("other"), "web").cpuset_cpus == "0,2-8,10-15"


@pytest.mark.parametrize(
    ("before", "after", "machine", "told"),
    [
        (static(), ManagerSettings(), MACHINE, 'policy "none" differs from .* "static"'),
        (static(), static(reserved=frozenset({1})), MACHINE, 'not all reserved cpus: "1"'),
        (static(), static(), two_nodes(cores=3), "current set of available CPUs"),
        (
            static(options={"strict-cpu-reservation": True}),
            static(),
            MACHINE,
            'not all reserved cpus: "0"',
        ),
    ],
)
def test_a_changed_policy_reservation_or_machine_refuses_the_start(
    tmp_path: Path,
    before: ManagerSettings,
    after: ManagerSettings,
    machine: Machine,
    told: str,
) -> None:
    write(tmp_path, before)
    with pytest.raises(ManagerStateError, match=told) as refused:
        load_managers(after, tmp_path, lambda: machine)
    assert "please drain this node and delete" in str(refused.value)
    assert str(tmp_path / CPU_FILE) in str(refused.value)


def test_changed_memory_refuses_the_start(tmp_path: Path) -> None:
    write(tmp_path, static(memory=True))
    with pytest.raises(ManagerStateError, match=MEMORY_FILE):
        load(tmp_path, static(memory=True), two_nodes(memory=16 * GI))
    with pytest.raises(ManagerStateError, match=r'policy "None" differs from .* "Static"'):
        load(tmp_path, static())


def test_a_static_policy_does_not_go_on_from_a_checkpoint_of_none(tmp_path: Path) -> None:
    (tmp_path / CPU_FILE).write_text('{"policyName":"none","defaultCpuSet":"","checksum":0}')
    assert load_managers(ManagerSettings(), tmp_path) is None
    with pytest.raises(ManagerStateError, match=r'policy "static" differs from .* "none"'):
        load(tmp_path, static())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (ManagerSettings(cpu_policy="static"), "greater than zero"),
        (static(reserved=frozenset({99})), "99 are not online"),
        (static(options={"strange": True}), "strange"),
        (ManagerSettings(memory_policy="Static"), "reservedMemory"),
    ],
)
def test_settings_that_do_not_suit_the_machine_are_named(
    tmp_path: Path, settings: ManagerSettings, told: str
) -> None:
    with pytest.raises(ManagerStateError, match=told):
        load(tmp_path, settings)


def test_a_huge_checkpoint_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / CPU_FILE).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ManagerStateError, match="more than"):
        load(tmp_path, static())
    with pytest.raises(ManagerStateError, match="more than"):
        load_managers(ManagerSettings(), tmp_path)


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_a_damaged_checkpoint_refuses_the_start_and_names_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / CPU_FILE).write_bytes(data)
    for settings in (ManagerSettings(), static()):
        with pytest.raises(ManagerStateError, match=CPU_FILE):
            load_managers(settings, root, lambda: MACHINE)


@pytest.mark.parametrize("file", [CPU_FILE, MEMORY_FILE])
def test_a_checkpoint_that_is_no_file_is_not_waited_for(tmp_path: Path, file: str) -> None:
    os.mkfifo(tmp_path / file)
    for settings in (ManagerSettings(), static(memory=True)):
        with no_hang(10), pytest.raises(OSError, match=file):
            load_managers(settings, tmp_path, lambda: MACHINE)


def test_a_checkpoint_of_before_1_18_is_refused_with_what_to_do(tmp_path: Path) -> None:
    # Its entries are by container ID, and no runtime is connected yet when the agent is built.
    (tmp_path / CPU_FILE).write_text(
        '{"policyName":"static","defaultCpuSet":"0,2-15","entries":{"abc":"1"},"checksum":0}'
    )
    with pytest.raises(ManagerStateError, match=r"before 1\.18: .* please drain this node") as no:
        load(tmp_path, static())
    assert str(tmp_path / CPU_FILE) in str(no.value)
