"""Choosing entries by pod and time, and showing them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubelet_trio.recorder import (
    Entry,
    Kind,
    PodFilter,
    Span,
    entry_lines,
    pod_uids,
    read_body,
    since,
)

LABEL = "io.kubernetes.pod.uid"


def entry(at: float, kind: Kind, key: str = "", **body: Any) -> Entry:
    return Entry(at, kind, key, msgspec.json.encode(body) if body else b"")


def status(id_: str, uid: str) -> dict[str, Any]:
    return {"status": {"id": id_, "labels": {LABEL: uid}, "state": 1}, "pid": 3}


RECORDING = [
    entry(0, Kind.START, reason="start", node="n1", wall=1000.0, version="1"),
    entry(0, Kind.SNAPSHOT),
    entry(1, Kind.WANTED, "file/u1", metadata={"name": "web-n1", "namespace": "default"}),
    entry(1, Kind.WANTED, "file/u2", metadata={"name": "db-n1", "namespace": "default"}),
    entry(1, Kind.SOURCES, all_ready=True, kept=[]),
    entry(2, Kind.CALL, "run_pod_sandbox", call=1, request={"config": {"metadata": {"uid": "u1"}}}),
    entry(2, Kind.CALL, "run_pod_sandbox", call=2, request={"config": {"metadata": {"uid": "u2"}}}),
    entry(3, Kind.ANSWER, "1", ok="s1"),
    entry(3, Kind.ANSWER, "2", ok="s2"),
    entry(4, Kind.CALL, "stop_pod_sandbox", call=3, request={"pod_sandbox_id": "s2"}),
    entry(4, Kind.ANSWER, "3", error="RuntimeCallError", text="busy"),
    entry(5, Kind.READ, "container_status:c1", ok=status("c1", "u1")),
    entry(5, Kind.READ, "container_status:c2", ok=status("c2", "u2")),
    entry(
        6,
        Kind.READ,
        "list_containers:",
        ok={
            "entries": [{"id": f"c{n}", "labels": {LABEL: f"u{n}"}} for n in (1, 2)],
            "gone": [],
        },
    ),
    entry(7, Kind.READ, "list_images:", ok=[{"id": "sha256:1"}]),
    entry(7, Kind.EXIT, "c1", pid=1),
    entry(7, Kind.EXIT, "c2", pid=2),
    entry(8, Kind.VOLUME, "bind", call=1, args=["/x", "/root/pods/u1/volumes/a"]),
    entry(8, Kind.VOLUME, "bind", call=2, args=["/x", "/root/pods/u2/volumes/a"]),
    entry(9, Kind.VOLUME, "bind", call=1, ok=None),
    entry(9, Kind.VOLUME, "bind", call=2, error="OSError", text="no"),
    entry(10, Kind.PROBE, "u1/main/liveness", result="failure", text="refused"),
    entry(10, Kind.PROBE, "u2/main/liveness", result="success", text=""),
    entry(11, Kind.PLAN, "u1", lines=["start main, attempt 1"], plan={}),
    entry(11, Kind.STATUS, "u2", phase="Running"),
    entry(12, Kind.GAP, lost=3, reason="the disk is full"),
    entry(13, Kind.CLOCK, wall=2000.0, jump=987.0),
    entry(14, Kind.WANTED, "file/u1"),
]


def test_a_pod_is_found_with_and_without_the_nodes_name() -> None:
    assert pod_uids(RECORDING, "web", "default") == {"u1"}
    assert pod_uids(RECORDING, "web-n1", "default") == {"u1"}
    assert pod_uids(RECORDING, "web", "other") == set()


def test_what_concerns_other_pods_is_left_out() -> None:
    chosen = list(PodFilter({"u1"}).filter(RECORDING))
    text = b"".join(e.key.encode() + e.body for e in chosen).decode()
    for other in ("u2", "s2", "c2", "busy", "db-n1"):
        assert other not in text
    dropped = {RECORDING.index(e) for e in RECORDING if e not in chosen}
    # The first says which pods were chosen.
    assert read_body(chosen[0].body)["only"] == ["u1"]
    assert dropped == {0, 3, 6, 8, 9, 10, 12, 13, 16, 18, 20, 22, 24}
    (listed,) = [e for e in chosen if e.key == "list_containers:"]
    assert [found["id"] for found in read_body(listed.body)["ok"]["entries"]] == ["c1"]


def test_both_together_are_all() -> None:
    first, *rest = PodFilter({"u1", "u2"}).filter(RECORDING)
    assert read_body(first.body)["only"] == ["u1", "u2"]
    assert rest == RECORDING[1:]


@pytest.mark.parametrize(
    ("wall", "first"), [(900.0, 0), (1000.0, 0), (1050.0, 0), (1100.0, 28), (9999.0, 56)]
)
def test_since_begins_with_the_segment_that_was_current_then(wall: float, first: int) -> None:
    later = [entry(100, Kind.START, reason="segment", wall=1100.0), *RECORDING[1:]]
    last = [entry(200, Kind.START, reason="segment", wall=1200.0), *RECORDING[1:]]
    every = [*RECORDING, *later, *last]
    assert list(since(every, wall)) == every[first:]


def test_lines_say_what_happened_and_when() -> None:
    lines = list(entry_lines(RECORDING))
    assert lines[0] == "1970-01-01T00:16:40.000Z START    start: node n1, version 1"
    assert lines[1] == "1970-01-01T00:16:40.000Z SNAPSHOT"
    assert lines[2].endswith("WANTED   file/u1  default/web-n1")
    assert lines[10].endswith("ANSWER   3  RuntimeCallError: busy")
    assert lines[13].endswith("READ     list_containers:  2 new or changed, 0 gone")
    assert lines[17].endswith("VOLUME   bind  #1 /x /root/pods/u1/volumes/a")
    assert lines[19].endswith("VOLUME   bind  #1 ok")
    assert lines[21].endswith("PROBE    u1/main/liveness  failure refused")
    assert lines[23].endswith("PLAN     u1  start main, attempt 1")
    assert lines[25].endswith("GAP      3 entries are missing: the disk is full")
    assert lines[26] == "1970-01-01T00:33:20.000Z CLOCK    the wall clock jumped by +987.0 s"
    assert lines[27] == "1970-01-01T00:33:21.000Z WANTED   file/u1  gone"
    assert all(len(line) < 300 for line in lines)


def test_the_line_of_a_question_says_for_whom_it_is() -> None:
    asked = {"call": 1, "request": {"ids": ["a"]}}
    key, who = "Allocate/example.com/gpu", {"pod": "u1", "container": "main"}
    lines = entry_lines(
        [
            entry(0, Kind.ASKED, key, **asked, **who),
            entry(0, Kind.ASKED, key, **asked),
            entry(0, Kind.ASKED, key, call=1, ok={"cdi_devices": ["x"]}),
        ]
    )
    assert [line.rpartition("  ")[2] for line in lines] == [
        "#1 ids=['a'], pod=u1, container=main",
        "#1 ids=['a']",
        "#1 cdi_devices=['x']",
    ]


def test_what_a_recording_spans() -> None:
    span = Span()
    assert list(span.count(RECORDING)) == RECORDING
    assert (span.entries, span.lost, span.node) == (28, 3, "n1")
    assert (span.first, span.last) == (1000.0, 2001.0)
