from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from kubelet_trio.sources.files.scan import (
    PathKind,
    is_ignored,
    read_manifest,
    read_manifests,
    scan,
)
from kubelet_trio.sources.manifest.decode import MAX_MANIFEST_SIZE
from tests.sources.make import encoded, manifest, names


@pytest.mark.parametrize(
    "name",
    """
    .hidden.yaml .web.yaml.swp ..data web.yaml~ #web.yaml# 4913 web.tmp web.yaml.bak
    web.yaml.dpkg-old web.yaml.orig web.swp
    """.split(),  # noqa: SIM905
)
def test_leftovers_are_ignored(name: str) -> None:
    assert is_ignored(name)


@pytest.mark.parametrize("name", ["web.yaml", "web", "web.json", "1.yaml", "#web.yaml", "bak"])
def test_anything_else_is_a_manifest(name: str) -> None:
    assert not is_ignored(name)


def test_a_directory_is_listed_in_order_and_without_its_directories(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", ".c.yaml"):
        (tmp_path / name).write_text("x")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "d.yaml").write_text("x")
    (tmp_path / "nowhere.yaml").symlink_to("missing")
    os.mkfifo(tmp_path / "pipe")
    listing = scan(str(tmp_path))
    assert listing.kind is PathKind.DIRECTORY
    assert [os.path.basename(path) for path in listing.files] == ["a.yaml", "b.yaml"]
    assert sorted(os.path.basename(path) for path in listing.broken) == ["nowhere.yaml", "pipe"]


def test_a_path_may_be_a_file_or_missing_or_astray(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    assert scan(str(file)).kind is PathKind.MISSING
    file.write_text("x")
    listing = scan(str(file))
    assert listing.kind is PathKind.FILE
    assert list(listing.files) == [str(file)]
    assert scan(str(tmp_path / "no" / "where" / "web.yaml")).kind is PathKind.PARENT_MISSING


def test_what_cannot_be_listed_is_not_empty(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    listing = scan(str(loop))
    assert listing.kind is PathKind.UNREADABLE
    assert listing.why == "Too many levels of symbolic links"


def test_every_link_on_the_way_is_watched(tmp_path: Path) -> None:
    real = tmp_path / "releases" / "1"
    real.mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/1")
    path = tmp_path / "manifests"
    path.symlink_to("current")
    points = scan(str(path)).watch
    assert points[str(path)] is None
    assert points[str(tmp_path)] == frozenset({"manifests", "current"})
    assert points[str(tmp_path / "releases")] == frozenset({"1"})


def test_where_a_manifest_links_to_is_watched(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "web.yaml").write_text("x")
    path = tmp_path / "manifests"
    path.mkdir()
    (path / "web.yaml").symlink_to(elsewhere / "web.yaml")
    assert scan(str(path)).watch[str(elsewhere)] == frozenset({"web.yaml"})


def test_the_nearest_directory_is_watched_for_a_path_that_is_missing(tmp_path: Path) -> None:
    points = scan(str(tmp_path / "a" / "b" / "c")).watch
    assert points == {str(tmp_path): frozenset({"a"})}


def test_a_file_is_read_with_the_state_it_was_read_in(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_bytes(encoded(manifest()))
    result = read_manifest(str(file), "n")
    assert result is not None
    assert names(result.pods) == ["web-n"]
    assert result.signature == scan(str(file)).files[str(file)]


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_bytes(encoded(manifest()))
    read_manifest(str(file), "n")  # what is made once
    tracemalloc.start()
    try:
        assert read_manifest(str(file), "n") is not None
        assert tracemalloc.get_traced_memory()[1] < MAX_MANIFEST_SIZE / 10
    finally:
        tracemalloc.stop()


def test_a_huge_file_is_refused_and_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    with file.open("wb") as out:
        out.truncate(MAX_MANIFEST_SIZE * 100)
    result = read_manifest(str(file), "n")
    assert result is not None
    assert "larger than 10 MiB" in str(result.error)


def test_a_pipe_in_place_of_a_file_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_manifest(str(tmp_path / "pipe"), "n") is None


def test_a_file_that_does_not_open_is_told_from_one_that_went(tmp_path: Path) -> None:
    loop, gone = str(tmp_path / "loop"), str(tmp_path / "gone")
    os.symlink(loop, loop)
    results = read_manifests([loop, gone], "n")
    assert str(results[loop]) == f"{loop}: cannot be read: Too many levels of symbolic links"
    assert results[gone] is None
