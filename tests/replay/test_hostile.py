"""Recordings from strangers: refused by name, or replayed; nothing outside is touched."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubelet_trio.agent import Agent
from kubelet_trio.recorder import (
    MAGIC,
    Entry,
    Kind,
    RecordingError,
    encode_entry,
    read_recording,
    write_recording,
)
from kubelet_trio.replay import compare, recorded, replay_recording
from kubelet_trio.replay.compare import status_words
from kubelet_trio.testing import Behaviour, FakeRuntime
from tests.agent.node import Node, make_pod
from tests.replay.recordings import record

UID = "5c0d8ab6"
START = Entry(0, Kind.START, "", b'{"reason": "start", "wall": 1000, "node": "n"}')
END = Entry(0, Kind.SNAPSHOT, "")


def pod(**changed: Any) -> dict[str, Any]:
    """Return a pod as a recording has it; `changed` replaces parts of its spec or metadata."""
    found: dict[str, Any] = {
        "metadata": {"name": "web", "namespace": "default", "uid": UID},
        "spec": {
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "containers": [{"name": "web", "image": "web", "imagePullPolicy": "IfNotPresent"}],
        },
    }
    for name, value in changed.items():
        is_meta = name in ("name", "namespace", "uid", "annotations", "labels")
        part = "metadata" if is_meta else "spec"
        found[part][name] = value
    return found


def entry(kind: Kind, key: str, body: Any, at: float = 1.0) -> Entry:
    return Entry(at, kind, key, json.dumps(body).encode())


def wanted(key: str = f"file/{UID}", **changed: Any) -> Entry:
    return entry(Kind.WANTED, key, pod(**changed))


def container(**changed: Any) -> dict[str, Any]:
    labels = {
        "io.kubernetes.pod.uid": UID,
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.container.name": "web",
    }
    labels |= changed.pop("labels", {})
    return {"id": "c1", "pod_sandbox_id": "s1", "labels": labels, **changed}


def listed(**changed: Any) -> Entry:
    body = {"ok": {"entries": [container(**changed)], "gone": []}}
    return entry(Kind.READ, "list_containers:", body)


def volume(**source: Any) -> Entry:
    return wanted(volumes=[{"name": "v", **source}])


UP = "../../../../../../../../tmp/kubelet-trio-escaped"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (wanted(f"file/{UP}"), "key: .* is no name of a source"),
        (wanted("file/a_b"), "key: .*must be up to 128 letters"),
        (wanted("file/another"), "metadata.uid: '5c0d8ab6' is not that of its key"),
        (wanted(f"../{UID}x/{UID}"), "key: .* is no name of a source"),
        (entry(Kind.WANTED, f"file/{UID}", {}), "metadata.uid: None is not that of its key"),
        (wanted(namespace=UP), "metadata.namespace"),
        (wanted(name="a/b"), "metadata.name"),
        (wanted(annotations={"a": None}), r"metadata.annotations\[a\]: it must be a text"),
        (wanted(labels={"a": 5}), r"metadata.labels\[a\]: it must be a text"),
        (wanted(nodeSelector={"a": []}), r"spec.nodeSelector\[a\]: it must be a text"),
        (entry(Kind.MARK, "", None), "object"),
        (wanted(containers=[{"name": "..", "image": "x"}]), r"spec.containers\[0\].name"),
        (wanted(containers=7), "containers"),
        (volume(hostPath={"path": f"/{UP}", "type": "FileOrCreate"}), "hostPath.path"),
        (wanted(ephemeralContainers=[{"name": "../x", "image": "x"}]), "ephemeral.*name"),
        (entry(Kind.RECORD, UP, {}), "key: .*must be up to 128 letters"),
        (
            entry(
                Kind.RECORD, UID, {"version": 1, "uid": UID, "pod": pod(name=UP), "start_time": 1}
            ),
            "pod.metadata.name",
        ),
        (
            entry(Kind.RECORD, UID, {"version": 1, "uid": "x", "pod": pod(), "start_time": 1}),
            "uid: 'x' is not that of its key",
        ),
        (
            entry(
                Kind.OBJECT,
                "ConfigMap/default/c",
                {"metadata": {"name": "c", "namespace": "default"}, "data": {UP: ""}},
            ),
            r"data\[",
        ),
        (
            entry(
                Kind.OBJECT,
                "PersistentVolume//v",
                {"metadata": {"name": "v"}, "spec": {"hostPath": {"path": f"/{UP}"}}},
            ),
            "spec.hostPath.path",
        ),
        (listed(id=UP), r"ok.entries\[0\].id"),
        (listed(labels={"io.kubernetes.pod.uid": UP}), r"labels\[io.kubernetes.pod.uid\]"),
        (listed(labels={"io.kubernetes.pod.namespace": ".."}), "pod.namespace"),
        (listed(labels={"io.kubernetes.container.name": "../x"}), "container.name"),
        (listed(created_at=1 << 62), "created_at"),
        (listed(state="on"), "state"),
        (entry(Kind.READ, f"container_status:{UP}", {"error": "x"}), "key"),
        (entry(Kind.SOURCES, "", {"kept": [UP]}), "kept"),
        (entry(Kind.CLOCK, "", {"wall": 1e300}), "wall: 1e.300 s is no time"),
        (entry(Kind.CLOCK, "", {"wall": "now"}), "wall"),
        (entry(Kind.PLAN, UID, {"plan": {"retry_at": 1e99}}), "plan.retry_at"),
        (entry(Kind.PLAN, UID, {"plan": {"start": [{}]}}), "name"),
        (entry(Kind.STATUS, UID, {"conditions": 7}), "conditions"),
        (entry(Kind.PROBE, f"{UID}/web/liveness", {"result": "good"}), "result"),
        (entry(Kind.CALL, "start_container", {"call": [], "request": {}}), "call"),
        (entry(Kind.CALL, "start_container", {"call": 1, "request": {"container_id": UP}}), "id"),
        (entry(Kind.ANSWER, "1" * 5000, {"ok": None}), "key"),
        (entry(Kind.ANSWER, "1", []), "object"),
        (entry(Kind.VOLUME, "bind", {"call": 1, "args": 7}), "args"),
        (entry(Kind.EXIT, "c", {"pid": "perhaps"}), "pid"),
        (entry(Kind.EXIT, "c", []), "object"),
        (Entry(1.0, Kind.WANTED, f"file/{UID}", b"[" * 100_000), "nested too deeply"),
        (Entry(1.0, Kind.WANTED, f"file/{UID}", b"\xff{"), "malformed"),
        (Entry(float("nan"), Kind.EXIT, "c"), "time: nan"),
        (Entry(float("inf"), Kind.EXIT, "c"), "time: inf"),
        (Entry(1e8, Kind.EXIT, "c"), "more than 100 days after"),
        (Entry(-100.0, Kind.EXIT, "c"), "it goes back by 100 s"),
        (Entry(1.0, Kind.EXIT, UP), "key"),
        (entry(Kind.START, "", {"reason": "start", "wall": float("1e30")}), "wall"),
        (entry(Kind.START, "", {"reason": "start", "wall": 5, "node": "../n"}), "node"),
        (
            entry(
                Kind.START, "", {"reason": "start", "wall": 5, "settings": {"sync_period": 1e-9}}
            ),
            "settings.sync_period",
        ),
        (
            entry(Kind.START, "", {"reason": "start", "wall": 5, "settings": {"node": True}}),
            "settings.node: it must be an object",
        ),
    ],
)
def test_an_entry_that_no_agent_wrote_is_refused_by_name(
    tmp_path: Path, bad: Entry, says: str
) -> None:
    path = tmp_path / "bad.rec"
    write_recording(path, [START, END, bad])
    with pytest.raises(RecordingError, match=f"(?s)bad.rec: entry 3 .*{says}"):
        replay_recording(path)


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("of_a_later_version:", {"ok": {"entries": None}}),
        ("list_containers:", {"error": "RuntimeCallError", "ok": {"entries": None}}),
    ],
)
def test_an_answer_that_is_not_read_is_not_looked_into(
    tmp_path: Path, key: str, body: dict[str, Any]
) -> None:
    path = tmp_path / "odd.rec"
    write_recording(path, [START, END, entry(Kind.READ, key, body)])
    assert replay_recording(path)


def test_a_call_makes_an_id(tmp_path: Path) -> None:
    path = tmp_path / "bad.rec"
    call = entry(Kind.CALL, "run_pod_sandbox", {"call": 1, "request": {}})
    write_recording(path, [START, END, call, entry(Kind.ANSWER, "1", {"ok": UP})])
    with pytest.raises(RecordingError, match=r"entry 4 .*ok: .* is no id"):
        replay_recording(path)


def test_what_cannot_be_made_in_the_directory_is_refused(tmp_path: Path) -> None:
    """A file, and then a directory in it."""
    path = tmp_path / "bad.rec"
    paths = [{"path": "/a", "type": "FileOrCreate"}, {"path": "/a/b", "type": "Directory"}]
    volumes = [{"name": f"v{n}", "hostPath": source} for n, source in enumerate(paths)]
    write_recording(path, [START, END, wanted(volumes=volumes)])
    with pytest.raises(RecordingError, match=f"WANTED file/{UID}: "):
        replay_recording(path)


def test_a_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "_MOST_ENTRIES", 1000)
    monkeypatch.setattr(recorded, "_MOST_BYTES", 1 << 20)
    path = tmp_path / "bomb.rec"
    frames = encode_entry(Entry(0, Kind.EXIT, "c")) * 2000
    path.write_bytes(gzip.compress(MAGIC + encode_entry(START) + frames))
    with pytest.raises(RecordingError, match="entry 1001: a replay takes 1000 entries"):
        replay_recording(path)
    large = encode_entry(Entry(0, Kind.MARK, "c", b" " * (1 << 19) + b"{}"))
    path.write_bytes(gzip.compress(MAGIC + encode_entry(START) + large * 3))
    with pytest.raises(RecordingError, match="1 MiB"):
        replay_recording(path)


def test_an_unpacked_bomb_of_zeros_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "bomb.rec"
    path.write_bytes(gzip.compress(MAGIC + bytes(64 << 20)))
    with pytest.raises(RecordingError, match="a frame of 0 bytes"):
        replay_recording(path)


def test_files_that_statuses_name_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A termination message would be a file of this machine."""
    secret = tmp_path / "secret"
    secret.write_text("not to be told")
    info = {"io.kubernetes.container.terminationMessagePath": "/dev/termination-log"}
    mounts = [{"container_path": "/dev/termination-log", "host_path": str(secret)}]
    status = container(state=2, exit_code=1, annotations=info, log_path=str(secret), mounts=mounts)
    del status["pod_sandbox_id"]
    sandbox = container(id="s1", state=1, metadata={"name": "web", "uid": UID})
    del sandbox["pod_sandbox_id"]
    sandboxes = {"ok": {"entries": [sandbox], "gone": []}}
    path = tmp_path / "x.rec"
    found = [
        entry(Kind.READ, "list_pod_sandboxes:", sandboxes, 0),
        replace(listed(state=2, annotations=info), at=0),
        entry(Kind.READ, "container_status:c1", {"ok": {"status": status}}, 0),
        entry(Kind.READ, "pod_sandbox_status:s1", {"ok": sandbox}, 0),
        replace(wanted(restartPolicy="Never"), at=0),
        entry(Kind.SOURCES, "", {"all_ready": True}, 0),
    ]
    write_recording(path, [START, *found, END, Entry(3.0, Kind.EXIT, "other")])
    shown = []

    def words(status: Any) -> tuple[str, ...]:
        shown.append(repr(status))
        return status_words(status)

    monkeypatch.setattr(compare, "status_words", words)
    replay_recording(path)
    assert "'exitCode': 1" in shown[-1]
    assert "not to be told" not in "".join(shown)


# Anything in a good recording may be anything else


class Entries(list[Entry]):
    """A recording that no report spells out."""

    def __repr__(self) -> str:
        return "a recording"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Entries:
    """A recording of a pod with a volume, which crashes once, and goes."""
    node = Node(tmp_path_factory.mktemp("good"))
    node.runtime = FakeRuntime(behave=lambda _c: Behaviour(exits_after=2.0, exit_code=1))
    spec = ["volumes: [{name: v, hostPath: {path: /data, type: DirectoryOrCreate}}]"]
    first = make_pod(spec=spec)

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(first)
        await trio.sleep(4)
        node.feed.put()
        await trio.sleep(3)

    return Entries(read_recording(record(node, story)))


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1 << 31, 1 << 62, 1e300, -1.5),
        *("", UP, "..", "/", "\0", "x" * 300, "0"),
        *([], {}, [[]], [None], {"": None}),
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something is in a body."""
    yield path
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inside:
            yield from places(each, (*path, key))


def changed_body(body: bytes, data: st.DataObject) -> bytes:
    """Replace or remove something in a body."""
    content = json.loads(body) if body else {}
    path = data.draw(st.sampled_from(list(places(content))))
    value = data.draw(VALUES)
    if not path:
        return json.dumps(value).encode()
    at = content
    for step in path[:-1]:
        at = at[step]
    if data.draw(st.booleans()):
        at[path[-1]] = value
    else:
        del at[path[-1]]
    return json.dumps(content).encode()


def changed_entry(given: Entry, data: st.DataObject) -> Entry:
    how = data.draw(st.sampled_from(["body", "body", "body", "time", "key", "kind"]))
    if how == "body":
        return replace(given, body=changed_body(given.body, data))
    if how == "time":
        return replace(given, at=data.draw(st.floats() | st.floats(-5, 200)))
    if how == "kind":
        return replace(given, kind=data.draw(st.sampled_from(Kind)))
    key = data.draw(st.sampled_from(["", UP, f"file/{UP}", "1", "c/../..", given.key + "/.."]))
    return replace(given, key=key)


def change(entries: list[Entry], data: st.DataObject) -> list[Entry]:
    found = list(entries)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(found) - 1))
        how = data.draw(st.sampled_from(["change", "change", "change", "drop", "twice", "move"]))
        if how == "change":
            found[at] = changed_entry(found[at], data)
        elif how == "drop" and len(found) > 1:
            del found[at]
        elif how == "twice":
            found.insert(at, found[at])
        elif how == "move":
            found.insert(data.draw(st.integers(0, len(found) - 1)), found.pop(at))
    return found


def change_of(entries: list[Entry], kinds: tuple[Kind, ...], data: st.DataObject) -> list[Entry]:
    """Change one of the entries of some kinds."""
    found = list(entries)
    at = data.draw(st.sampled_from([i for i, each in enumerate(found) if each.kind in kinds]))
    found[at] = changed_entry(found[at], data)
    return found


def damaged(data: st.DataObject, content: bytes) -> bytes:
    """Cut a file off, or change a byte of it, now and then."""
    how = data.draw(st.sampled_from(["", "", "", "cut", "byte"]))
    at = data.draw(st.integers(0, len(content) - 1)) if how else 0
    if how == "cut":
        return content[:at]
    if how == "byte":
        return (
            content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
        )
    return content


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Let temporary directories be made in a directory; return a function that lists it."""
    top = tmp_path / "outside" / "a" / "b"
    top.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(top))
    return lambda: sorted(str(path) for path in (tmp_path / "outside").rglob("*"))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_changed_recording_is_refused_or_replayed(
    good: Entries, tmp_path: Path, outside: Callable[[], list[str]], data: st.DataObject
) -> None:
    path = tmp_path / "changed.rec"
    content = MAGIC + b"".join(map(encode_entry, change(good, data)))
    path.write_bytes(damaged(data, gzip.compress(content) if data.draw(st.booleans()) else content))
    before = outside()
    with suppress(RecordingError):
        replay_recording(path, after=60)
    assert outside() == before
    assert not Path("/tmp/kubelet-trio-escaped").exists()
