"""What is kept reads as it was written, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import ConfigMap, Pod, Secret
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.objects import ServiceFacts, config_map_key, object_key, secret_key
from kubelet_trio.objects.kinds import ServicePort
from kubelet_trio.offline.files import (
    SERVICES,
    Folder,
    Item,
    decode,
    encode,
    object_item,
    pod_item,
)

FACTS = (ServiceFacts("default", "kubernetes", "10.96.0.1", (ServicePort("https", "TCP", 443),)),)


def secret(name: str = "secret", **data: str) -> Secret:
    return Secret(metadata=ObjectMeta(name=name, namespace="default"), data=data)


def item(value: Secret | ConfigMap) -> Item:
    return object_item(object_key(value))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "offline")


def test_what_was_written_is_read_by_the_next_agent(folder: Folder) -> None:
    pod = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="1"))
    held: dict[Item, object] = {
        pod_item("1"): pod,
        item(secret(a="1")): secret(a="1"),
        SERVICES: FACTS,
    }
    assert folder.change(held, []) == 3
    assert Folder(folder.path).load() == held
    assert folder.change(held, []) == 0
    assert folder.change({}, [pod_item("1"), pod_item("2")]) == 1
    assert Folder(folder.path).load().keys() == held.keys() - {pod_item("1")}


def test_a_directory_that_is_not_there_holds_nothing_and_is_not_made(folder: Folder) -> None:
    assert folder.load() == {}
    assert folder.change({}, []) == 0
    assert not folder.path.exists()


def test_nobody_else_may_read_it_whatever_the_umask(folder: Folder) -> None:
    before = os.umask(0)
    try:
        folder.change({item(secret()): secret()}, [])
    finally:
        os.umask(before)
    (file,) = folder.path.iterdir()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    folder.path.chmod(0o755)
    folder.load()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


@given(st.data())
def test_a_file_that_is_cut_short_or_changed_anywhere_is_refused(data: st.DataObject) -> None:
    value = secret(password="c2VjcmV0")
    content, _ = encode(item(value), value)
    at = data.draw(st.integers(0, len(content) - 2))  # the last is an end of line
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[at]))
    for broken in (content[:at], content[:at] + bytes([other]) + content[at + 1 :]):
        try:
            found = decode(broken)
        except ValueError:
            continue
        # A space in the head's JSON, say, changes nothing.
        assert found[:2] == (item(value), value)


@given(st.binary(max_size=200))
def test_no_file_crashes_the_reader(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode(content)


def corrupt_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def corrupt_empty(file: Path) -> None:
    file.write_bytes(b"")


def corrupt_mode(file: Path) -> None:
    file.chmod(0o644)


def corrupt_link(file: Path) -> None:
    elsewhere = file.parent.parent / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def corrupt_other(file: Path) -> None:
    value = secret("another")
    file.write_bytes(encode(item(value), value)[0])


@pytest.mark.parametrize(
    "corrupt", [corrupt_cut, corrupt_empty, corrupt_mode, corrupt_link, corrupt_other]
)
def test_a_corrupt_file_is_kept_aside_and_the_others_are_read(
    folder: Folder, corrupt: object, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ConfigMap(metadata=ObjectMeta(name="config", namespace="default"))
    folder.change({item(secret(a="1")): secret(a="1"), item(config): config}, [])
    file = folder.path / item(secret()).file_name
    assert callable(corrupt)
    corrupt(file)
    assert Folder(folder.path).load().keys() == {item(config)}
    assert not file.exists()
    aside = file.with_name(file.name + ".corrupt")
    assert aside.exists() or aside.is_symlink()
    assert str(file) in capsys.readouterr().out
    again = Folder(folder.path)
    assert again.load().keys() == {item(config)}
    again.change({item(secret(a="1")): secret(a="1")}, [])
    again.change({}, [item(secret())])
    assert [path.name for path in folder.path.iterdir()] == [item(config).file_name]


def test_what_a_crash_left_half_written_is_removed(folder: Folder) -> None:
    folder.change({item(secret()): secret()}, [])
    (folder.path / ".new").write_bytes(b"half")
    assert Folder(folder.path).load().keys() == {item(secret())}
    assert len(list(folder.path.iterdir())) == 1


def test_a_link_in_the_place_of_the_directory_is_not_followed(
    folder: Folder, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="offline"):
        folder.change({item(secret()): secret()}, [])
    with pytest.raises(OSError, match="offline"):
        folder.load()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_a_directory_of_somebody_else_is_not_believed(folder: Folder) -> None:
    folder.change({item(secret()): secret()}, [])
    os.chown(folder.path, 65534, 65534)
    with pytest.raises(PermissionError, match="65534"):
        Folder(folder.path).load()


def test_every_name_makes_a_file_name_of_its_own() -> None:
    longest = "a" * 253
    keys = [
        secret_key("default", longest),
        secret_key("default", "../x"),
        secret_key("default", "x"),
        secret_key("x", "default"),
        config_map_key("default", "x"),
    ]
    names = [object_item(key).file_name for key in keys]
    assert len(set(names)) == len(keys)
    assert all(len(name) < 100 and "/" not in name for name in names)
