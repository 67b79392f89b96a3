"""The kinds that are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lightkube.models.core_v1 import (
    FCVolumeSource,
    FlexVolumeSource,
    ISCSIVolumeSource,
    LocalVolumeSource,
    NFSVolumeSource,
    PersistentVolumeSpec,
)

from kubelet_trio.model import inline_offload
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes.host.plugins import HOST_KINDS, PluginContext, host_kinds, unique_name
from kubelet_trio.volumes.layout import PLUGINS
from kubelet_trio.volumes.teardown import plugin_directories
from tests.volumes.host.disk_specs import disk_spec

SOURCES = {
    "fc": FCVolumeSource(wwids=["w"]),
    "flexVolume": FlexVolumeSource(driver="v/d"),
    "iscsi": ISCSIVolumeSource(iqn="iqn.2001-04.com.example:a", lun=0, targetPortal="10.0.0.1"),
    "local": LocalVolumeSource("/tmp"),
    "nfs": NFSVolumeSource("/export", "nas"),
}


@pytest.mark.parametrize("kind", HOST_KINDS)
async def test_a_kind_has_its_plugin_and_directories(tmp_path: Path, kind: str) -> None:
    kinds = host_kinds(PluginContext(tmp_path, FakeMounter(), inline_offload))
    (known,) = [known for known in kinds if known.kind == kind]
    plugin, spec = known.make(), disk_spec(kind, SOURCES[kind])
    assert kind in PersistentVolumeSpec.__annotations__
    assert PLUGINS[kind] == f"kubernetes.io/{HOST_KINDS[kind].plugin}"
    assert not await plugin.is_set_up(spec)
    plugin.path(spec).mkdir(parents=True)
    pod_dir = tmp_path / "pods/u-1"
    assert [k.kind for k in kinds if any(map(k.owns, plugin_directories(pod_dir)))] == [kind]
    await plugin.tear_down(pod_dir)
    assert plugin_directories(pod_dir) == frozenset()
    assert not known.has_remains()
    (tmp_path / "plugins" / PLUGINS[kind]).mkdir(parents=True)
    assert [k.kind for k in kinds if k.has_remains()] == [kind]
    assert (unique_name(spec) is None) is (kind in ("local", "nfs"))


@pytest.mark.parametrize(
    "name",
    sorted(
        set(PLUGINS.values()) - {f"kubernetes.io/{kind.plugin}" for kind in HOST_KINDS.values()}
    ),
)
def test_no_other_kinds_directory_is_torn_down(tmp_path: Path, name: str) -> None:
    kinds = host_kinds(PluginContext(tmp_path, FakeMounter(), inline_offload))
    assert not any(known.owns(name.replace("/", "~")) for known in kinds)


def test_nothing_is_imported_before_it_is_used() -> None:
    text = (
        "import sys\nimport kubelet_trio.volumes.host.plugins, kubelet_trio.volumes.manager\n"
        "modules = ('disks', 'flex', 'format', 'iscsi', 'fibre_channel', 'local', 'nfs', 'scsi')\n"
        "print([m for m in modules if f'kubelet_trio.volumes.{m}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
