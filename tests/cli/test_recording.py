"""`record save` and `record show`, of agents that run and that are dead."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli
from kubelet_trio.recorder import Entry, Kind, encode_entry, read_recording
from kubelet_trio.recorder.ring import Ring, segments
from tests.cli.running import served
from tests.server.fake_view import FakeView

NOW = time.time()


def entry(at: float, kind: Kind, key: str = "", **body: object) -> Entry:
    return Entry(at, kind, key, msgspec.json.encode(body) if body else b"")


def snapshot(wall: float, limit: int) -> list[bytes]:
    start = entry(0, Kind.START, reason="start", node="n1", version="1", wall=wall)
    return [encode_entry(start), encode_entry(entry(0, Kind.SNAPSHOT))]


def pod(uid: str, name: str) -> Entry:
    return entry(1, Kind.WANTED, f"file/{uid}", metadata={"name": name, "namespace": "default"})


def record(root: Path, *entries: Entry, ago: float = 3600.0) -> None:
    """Write a segment that began some seconds ago."""
    ring = Ring(root / "recorder", 1 << 20)
    for one in entries:
        ring.add(encode_entry(one), partial(snapshot, NOW - ago))
    ring.flush()
    ring.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    record(tmp_path, pod("u1", "web-n1"), pod("u2", "db-n1"), entry(61, Kind.EXIT, "c1", pid=1))
    return tmp_path


def run(root: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--root-dir", str(root), "record", *words])


def test_the_ring_of_a_dead_agent_is_packed(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "node.rec"
    result = run(root, "save", str(file))
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{file}: 0 kB, 5 entries of 61s, from 20")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [e.kind for e in read_recording(file)] == [
        *(Kind.START, Kind.SNAPSHOT, Kind.WANTED, Kind.WANTED, Kind.EXIT)
    ]


def test_a_name_is_found(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    assert run(root, "save").exit_code == 0
    (file,) = place.iterdir()
    assert file.name.startswith("kubelet-trio-")
    assert file.suffix == ".rec"


def test_one_pod_and_a_time(root: Path, tmp_path: Path) -> None:
    record(root, pod("u1", "web-n1"), pod("u2", "db-n1"), ago=60)
    shown = run(root, "show", "--pod", "web")
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("default/web-n1") == 2
    assert "db" not in shown.output
    recent = run(root, "show", "--since", "30s")
    assert recent.output.count("START") == 1
    assert run(root, "show", "--since", "2h").output.count("START") == 2
    file = tmp_path / "node.rec"
    assert run(root, "save", str(file), "--pod", "web", "--since", "1s").exit_code == 0
    assert run(root, "show", str(file)).output.count("WANTED") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("save", "--pod", "no"), "the recording has no pod default/no"),
        (("show", "--since", "soon"), "invalid duration"),
        (("show", "/nowhere/file.rec"), "/nowhere/file.rec: No such file"),
        (("save", "/nowhere/file.rec"), "/nowhere/.file.rec.new: No such file"),
    ],
)
def test_mistakes_are_named(root: Path, words: tuple[str, ...], text: str) -> None:
    result = run(root, *words)
    assert result.exit_code in (1, 2)
    assert text in result.output


def test_another_file_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("hello")
    result = run(root, "show", str(tmp_path / "other"))
    assert result.exit_code == 1
    assert "this is no recording of kubelet-trio" in result.output


def test_without_a_recording_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "node.rec"
    result = run(tmp_path / "root", "save", str(file))
    assert result.exit_code == 1
    assert "there is no recording; is flightRecorderSize of its agent 0" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_segment_is_kept_up_to_the_damage(root: Path) -> None:
    (segment,) = segments(root / "recorder")
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)
    record(root, pod("u3", "later-n1"), ago=10)
    shown = run(root, "show")
    assert shown.exit_code == 0
    assert "db-n1" in shown.output
    assert "later-n1" in shown.output
    assert f"GAP      0 entries are missing: {segment}: offset" in shown.output


def test_a_running_agent_writes_first(root: Path) -> None:
    with served(FakeView(), root) as agent:
        agent.on_record = lambda: record(root, pod("u9", "fresh-n1"), ago=1)
        assert "fresh-n1" in run(root, "show").output
