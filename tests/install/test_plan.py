"""Installations below a directory: a second one is empty, and the undoing leaves nothing."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kubelet_trio.install.checks import PLUGINS
from kubelet_trio.install.cni import CONFLIST
from kubelet_trio.install.containerd import CONFIG, DROP_IN, ContainerdFiles
from kubelet_trio.install.contents import (
    KUBELET_CONFIG,
    PACKAGED_UNITS,
    PROGRAM,
    SYSCTL_FILE,
    UNIT,
    Options,
    unit_text,
)
from kubelet_trio.install.facts import Facts
from kubelet_trio.install.files import JOURNAL, InstallError, Plan, Tree
from kubelet_trio.install.gather import cni_facts, containerd_files, load_wanted
from kubelet_trio.install.system import after_install, after_uninstall
from tests.install.test_checks import GOOD
from tests.install.test_containerd import DEBIAN, DOCKER

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
# Files that a machine may have already, with the texts that they may have.
MACHINE: dict[str, tuple[str, ...]] = {
    CONFIG: (DEBIAN, DOCKER, "", "version = 2\n"),
    KUBELET_CONFIG: (f"{HEAD}cgroupDriver: systemd\n", HEAD),
    "/etc/cni/net.d/05-mine.conflist": ("{}",),
    CONFLIST: ("{}",),
    SYSCTL_FILE: ("# mine\n",),
    UNIT: ("# mine\n",),
    PACKAGED_UNITS[0]: ("# of a package\n",),
    "/etc/containerd/conf.d/10-mine.toml": ("version = 2\n",),
    "/etc/kubernetes/manifests/web.yaml": ("# mine\n",),
}
machines = st.fixed_dictionaries(
    {}, optional={path: st.sampled_from(texts) for path, texts in MACHINE.items()}
)
options = st.builds(
    Options,
    pod_cidr=st.sampled_from(["10.86.0.0/16", "172.30.0.0/16,fd00::/64"]),
    pause_image=st.sampled_from(["", "example.org/pause:1"]),
)


@contextmanager
def machine(files: dict[str, str]) -> Iterator[Tree]:
    base = Path(tempfile.mkdtemp(prefix="kt-install-"))
    try:
        tree = Tree(base)
        for path, text in files.items():
            tree.at(path).parent.mkdir(parents=True, exist_ok=True)
            tree.at(path).write_text(text)
        plugins = tree.at("/usr/lib/cni")
        plugins.mkdir(parents=True, exist_ok=True)
        for name in (*PLUGINS, "portmap"):
            (plugins / name).touch()
        yield tree
    finally:
        shutil.rmtree(base)


def facts_of(tree: Tree, version: str = "1.6.20") -> Facts:
    containerd = containerd_files(tree.root, version)
    wanted = load_wanted([], tree.root, systemd=True)
    cni = cni_facts(tree.root, containerd)
    return replace(GOOD, wanted=wanted, containerd=containerd, cni=replace(cni, routes=()))


def plan(tree: Tree, chosen: Options) -> Plan:
    return tree.plan(facts_of(tree), chosen)


def listing(tree: Tree) -> dict[str, str | None]:
    """Return every file with its text, and every directory."""
    return {
        str(path.relative_to(tree.root)): path.read_text() if path.is_file() else None
        for path in tree.root.rglob("*")
    }


@given(machines, options)
@settings(max_examples=30)
def test_a_second_installation_has_nothing_to_do_and_the_undoing_leaves_nothing(
    files: dict[str, str], chosen: Options
) -> None:
    with machine(files) as tree:
        before = listing(tree)
        tree.apply(plan(tree, chosen))
        installed = listing(tree)
        # What the user has is the user's, but for the one line of containerd's file.
        for path, text in files.items():
            assert path == CONFIG or tree.read(path) == text
        assert plan(tree, tree.journal().options).is_empty
        tree.apply(plan(tree, chosen))
        assert listing(tree) == installed
        undos = tree.plan_undo()
        assert {undo.action for undo in undos} <= {"remove", "restore"}
        tree.undo(undos)
        assert listing(tree) == before


class InterruptedInstallError(OSError):
    """The power is gone."""


class FailingTree(Tree):
    """A tree whose writes fail from the nth on."""

    def __init__(self, root: Path, writes: int) -> None:
        super().__init__(root)
        self.left = writes

    def _take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedInstallError(errno.ENOSPC, "no space")

    def _write(self, path: str, text: str) -> None:
        self._take()
        super()._write(path, text)

    def _save(self, journal: object) -> None:
        self._take()
        super()._save(journal)  # type: ignore[arg-type]


@given(machines, options, options, st.integers(0, 12), st.sampled_from(["completed", ""]))
@settings(max_examples=30)
def test_an_interrupted_installation_is_completed_or_undone(
    files: dict[str, str], first: Options, second: Options, writes: int, completed: str
) -> None:
    with machine(files) as tree:
        before = listing(tree)
        if first != second:
            tree.apply(plan(tree, first))
        with suppress(InterruptedInstallError):
            FailingTree(tree.root, writes).apply(plan(tree, second))
        if completed:
            tree.apply(plan(tree, second))
            assert plan(tree, second).is_empty
            kept = {c.file.path for c in plan(tree, second).changes if c.action == "keep"}
            assert kept <= files.keys()
        tree.undo(tree.plan_undo())
        after = listing(tree)
        # Before the first entry of the journal only empty directories may be there.
        assert {k: v for k, v in after.items() if v is not None} == {
            k: v for k, v in before.items() if v is not None
        }


def test_what_was_changed_since_is_kept_and_left() -> None:
    with machine({CONFIG: DEBIAN}) as tree:
        tree.apply(plan(tree, Options()))
        config = tree.at(KUBELET_CONFIG)
        config.write_text(config.read_text() + "maxPods: 20\n")
        tree.at(CONFIG).write_text(f"{tree.read(CONFIG)}# mine\n")
        changes = {c.file.path: c.action for c in plan(tree, Options()).changes}
        assert changes[KUBELET_CONFIG] == "keep"
        undos = {undo.path: undo.action for undo in tree.plan_undo()}
        assert (undos[KUBELET_CONFIG], undos[CONFIG]) == ("leave", "leave")
        assert undos[DROP_IN] == "remove"
        tree.undo(tree.plan_undo())
        assert "maxPods: 20" in config.read_text()
        assert not tree.at(JOURNAL).exists()


def test_an_update_changes_its_own_files_only() -> None:
    with machine({}) as tree:
        tree.apply(plan(tree, Options()))
        changed = [
            c.file.path for c in plan(tree, Options(program="/opt/kt/x")).changes if c.writes
        ]
        assert changed == [UNIT]


def test_a_damaged_or_newer_journal_and_a_link_are_refused_by_name() -> None:
    with machine({JOURNAL: "{"}) as tree:
        with pytest.raises(InstallError, match=r"installed\.json is damaged"):
            tree.plan_undo()
        tree.at(JOURNAL).write_text('{"version": 2, "journal": {}}')
        with pytest.raises(InstallError, match="version 2"):
            plan(tree, Options())
    with machine({"/etc/real.toml": DEBIAN}) as tree:
        tree.at(CONFIG).parent.mkdir()
        os.symlink("../real.toml", tree.at(CONFIG))
        with pytest.raises(InstallError, match="symbolic link"):
            plan(tree, Options())


def test_a_packaged_unit_is_used_as_it_is() -> None:
    with machine({PACKAGED_UNITS[0]: unit_text()}) as tree:
        assert UNIT not in [change.file.path for change in plan(tree, Options()).changes]


def test_without_containerd_nothing_is_written_for_it() -> None:
    with machine({}) as tree:
        facts = replace(facts_of(tree), containerd=ContainerdFiles())
        paths = [change.file.path for change in tree.plan(facts, Options()).changes]
        assert not {CONFIG, DROP_IN} & set(paths)


def test_the_configuration_is_of_this_machine() -> None:
    with machine({}) as tree:
        facts = replace(facts_of(tree), cgroup_version=1, systemd=False)
        (config,) = (
            yaml.safe_load(change.file.text)
            for change in tree.plan(facts, Options()).changes
            if change.file.path == KUBELET_CONFIG
        )
        assert (config["failCgroupV1"], config["cgroupDriver"]) == (False, "cgroupfs")


def test_the_unit_starts_the_program_and_gives_it_no_mount_namespace() -> None:
    unit = unit_text("/opt/kubelet-trio/bin/kubelet-trio")
    assert "ExecStart=/opt/kubelet-trio/bin/kubelet-trio run --config=" in unit
    assert PROGRAM not in unit
    settings_of = {
        line.partition("=")[0] for line in unit.splitlines() if line and line[0] not in "#["
    }
    # systemd.exec(5): each of these makes one, and volumes would not reach the runtime.
    private = ("Private", "Protect", "ReadOnly", "ReadWrite", "Inaccessible", "BindPaths", "Mount")
    assert not [name for name in settings_of if name.startswith(private)]
    for line in ("Type=notify", "KillMode=process", "Restart=always", "Delegate=no"):
        assert line in unit.splitlines()


def test_the_machine_is_told_of_what_has_changed() -> None:
    missing = replace(GOOD, missing_modules=("br_netfilter",))
    assert after_install(missing, [UNIT, DROP_IN], now=True) == [
        ["modprobe", "br_netfilter"],
        ["systemctl", "daemon-reload"],
        ["systemctl", "try-restart", "containerd.service"],
        ["systemctl", "enable", "kubelet-trio.service"],
        ["systemctl", "restart", "kubelet-trio.service"],
    ]
    assert after_install(GOOD, [], now=True)[-1] == ["systemctl", "start", "kubelet-trio.service"]
    assert after_install(replace(GOOD, systemd=False), [UNIT, DROP_IN], now=True) == []
    assert ["systemctl", "try-restart", "containerd.service"] in after_uninstall(
        [CONFIG], systemd=True
    )
    assert after_uninstall([CONFIG], systemd=False) == []
