"""ResourceSlices that drivers hand to the node in files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kubelet_trio.model import inline_offload
from kubelet_trio.sources import SliceFiles
from tests.managers.claims.allocation.worlds import DRIVER, resource_slice


def content(driver: str = DRIVER, name: str = "s1") -> bytes:
    value = msgspec.to_builtins(resource_slice("gpu-0", driver=driver, name=name))
    return msgspec.json.encode(
        {**value, "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    )


def folder(root: Path, driver: str = DRIVER) -> Path:
    path = root / "plugins" / driver / "resourceslices"
    path.mkdir(parents=True)
    return path


async def test_valid_files_of_all_drivers_are_read(tmp_path: Path) -> None:
    files = SliceFiles(tmp_path, "n1", inline_offload)
    assert (await files.read()).slices == ()
    first, second = folder(tmp_path), folder(tmp_path, "nic.example.com")
    (tmp_path / "plugins" / "csi.example.com").mkdir()
    (first / "a.json").write_bytes(content())
    (first / ".b.json").write_bytes(b"{")  # not renamed yet
    (first / "notes.txt").write_bytes(b"{")
    (second / "a.yaml").write_bytes(content("nic.example.com"))
    found = await files.read()
    assert [one.spec.driver for one in found.slices] == [DRIVER, "nic.example.com"]
    assert found.problems == ()
    (first / "a.json").unlink()
    assert len((await files.read()).slices) == 1


async def test_a_file_that_is_wrong_is_named_and_skipped(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "a.json").write_bytes(content())
    (path / "b.json").write_bytes(b"{")
    (path / "c.json").write_bytes(content("other.example.com"))
    (path / "d.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n")
    (path / "e.json").write_bytes(content().replace(b'"nodeName":"n1"', b'"nodeNam":"n1"'))
    (path / "f.json").symlink_to("/etc/passwd")
    os.mkfifo(path / "g.json")
    (path / "h.json").write_bytes(b" " * (3 << 20))
    found = await SliceFiles(tmp_path, "n1", inline_offload).read()
    assert len(found.slices) == 1
    b, c, d, e, f, g, h = found.problems
    assert f"{path}/b.json:1:2: " in b
    assert c == f"{path}/c.json: spec.driver is other.example.com, and the directory of {DRIVER}"
    assert d == f"{path}/d.yaml: only ResourceSlices belong here, not ConfigMap"
    assert "spec.nodeNam: unknown field" in e
    assert "found a symbolic link" in f
    assert "found a FIFO" in g
    assert "expected 2097152 bytes at most" in h


async def test_a_directory_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.json").write_bytes(content())
    (tmp_path / "plugins" / DRIVER).mkdir(parents=True)
    (tmp_path / "plugins" / DRIVER / "resourceslices").symlink_to(tmp_path / "elsewhere")
    found = await SliceFiles(tmp_path, "n1", inline_offload).read()
    assert found.slices == ()
