"""What `kubelet-trio cp` takes from a container's archive, and what it refuses."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from kubelet_trio.cli import copy
from kubelet_trio.cli.client import ClientError


def untar(tmp_path: Path, prefix: str, *members: tuple[str, bytes | str | None]) -> Path:
    """Unpack an archive of files (bytes), symlinks (str) and directories (None)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    (tmp_path / "archive").write_bytes(packed.getvalue())
    copy._untar(os.open(tmp_path / "archive", os.O_RDONLY), prefix, str(tmp_path / "to"))
    return tmp_path / "to"


def test_a_directorys_content_goes_into_the_target(tmp_path: Path) -> None:
    to = untar(tmp_path, "tmp/d", ("tmp/d", None), ("tmp/d/e", None), ("tmp/d/e/f", b"f"))
    assert (to / "e" / "f").read_bytes() == b"f"


def test_a_file_goes_into_an_existing_directory(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    assert (untar(tmp_path, "tmp/f", ("tmp/f", b"f")) / "f").read_bytes() == b"f"


def test_links_are_not_made_and_nothing_is_written_through_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = untar(tmp_path, "d", ("d/link", str(tmp_path / "out")), ("d/link/f", b"f"))
    assert not (tmp_path / "out").exists()
    assert (to / "link" / "f").read_bytes() == b"f"
    assert 'warning: skipping symlink "d/link"' in capsys.readouterr().err


@pytest.mark.parametrize("name", ["d/../../evil", "other/f", "dd/f", "/etc/f"])
def test_names_outside_the_asked_path_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClientError, match="not below"):
        untar(tmp_path, "d", (name, b"evil"))
    assert not (tmp_path / "to").exists()


def test_names_that_leave_the_target_are_skipped(tmp_path: Path) -> None:
    to = untar(tmp_path, "", ("../evil", b"evil"), ("f", b"f"))
    assert (to / "f").read_bytes() == b"f"
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("web:/tmp/f", ("web", "/tmp/f")),
        ("default/web:f", ("default/web", "f")),
        ("./a:b", ("", "./a:b")),
        ("/a:b", ("", "/a:b")),
        ("plain", ("", "plain")),
    ],
)
def test_places(text: str, expected: tuple[str, str]) -> None:
    assert copy.parse_place(text) == expected


@pytest.mark.parametrize("text", [":f", "web:"])
def test_half_places_are_refused(text: str) -> None:
    with pytest.raises(ClientError):
        copy.parse_place(text)


@pytest.mark.parametrize(
    ("remote", "expected"),
    [("/tmp/f", "tmp/f"), ("../../f", "f"), ("./a/../b/", "b"), ("/", ""), (".", "")],
)
def test_the_prefix_in_an_archive(remote: str, expected: str) -> None:
    assert copy._stripped(remote) == expected
