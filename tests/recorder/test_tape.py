"""What becomes of notes: only news are entries, and a snapshot has the last of each key."""

from __future__ import annotations

from lightkube.models.core_v1 import Pod, PodStatus
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.cri import v1
from kubelet_trio.recorder import Entry, Kind, read_body, read_entries
from kubelet_trio.recorder.bodies import Failure, Listed, Variables
from kubelet_trio.recorder.format import MAGIC
from kubelet_trio.recorder.tape import FORGET, Note, Tape


def take(tape: Tape, kind: Kind, key: str, content: object, at: float = 0.0) -> list[Entry]:
    return list(tape.entries(Note(at, kind, key, content)))


def state(tape: Tape, limit: int = 1 << 20) -> list[Entry]:
    frames = tape.snapshot(1.0, lambda is_complete: b"[%d]" % is_complete, [("r", b"{}")])(limit)
    assert sum(map(len, frames)) <= limit
    return list(read_entries(MAGIC + b"".join(frames)))


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name))


def container(id_: str, state: int = 0) -> v1.Container:
    return v1.Container(id=id_, state=v1.ContainerState(state))


def test_the_same_again_is_no_news() -> None:
    tape = Tape(Variables())
    assert len(take(tape, Kind.WANTED, "file/a", pod("a"))) == 1
    assert take(tape, Kind.WANTED, "file/a", pod("a")) == []
    assert len(take(tape, Kind.WANTED, "file/a", pod("b"))) == 1
    (gone,) = take(tape, Kind.WANTED, "file/a", None)
    assert gone.body == b""
    assert take(tape, Kind.WANTED, "file/a", None) == []
    # Calls, exits and answers are each their own.
    assert len(take(tape, Kind.EXIT, "c", {"pid": 1})) == len(
        take(tape, Kind.EXIT, "c", {"pid": 1})
    )


def test_a_pod_that_comes_again_with_another_status_is_no_news() -> None:
    tape = Tape(Variables())

    def sent(version: str, phase: str, label: str = "a") -> Pod:
        meta = ObjectMeta(name="web", resourceVersion=version, labels={"app": label})
        return Pod(metadata=meta, status=PodStatus(phase=phase))

    (entry,) = take(tape, Kind.WANTED, "api/u", sent("1", "Pending"))
    assert read_body(entry.body)["status"]["phase"] == "Pending"
    assert take(tape, Kind.WANTED, "api/u", sent("2", "Running")) == []
    # A segment begins with the newest.
    (wanted,) = [entry for entry in state(tape) if entry.kind is Kind.WANTED]
    assert read_body(wanted.body)["status"]["phase"] == "Running"
    assert len(take(tape, Kind.WANTED, "api/u", sent("3", "Running", "b"))) == 1
    take(tape, Kind.WANTED, "api/u", None)
    assert len(take(tape, Kind.WANTED, "api/u", sent("3", "Running", "b"))) == 1


def test_the_time_of_an_answer_is_no_news() -> None:
    tape = Tape(Variables())

    def usage(at: int, used: int) -> tuple[v1.ImageFsInfoResponse]:
        found = v1.FilesystemUsage(timestamp=at, used_bytes=v1.UInt64Value(value=used))
        return (v1.ImageFsInfoResponse(image_filesystems=[found]),)

    assert len(take(tape, Kind.READ, "image_fs_info:", usage(1, 10))) == 1
    assert take(tape, Kind.READ, "image_fs_info:", usage(2, 10)) == []
    assert len(take(tape, Kind.READ, "image_fs_info:", usage(3, 11))) == 1


def test_a_list_has_what_is_new_changed_and_gone() -> None:
    tape = Tape(Variables())
    first = Listed([container("a"), container("b")], [])
    (entry,) = take(tape, Kind.READ, "list_containers:", first)
    assert [found["id"] for found in read_body(entry.body)["ok"]["entries"]] == ["a", "b"]
    assert take(tape, Kind.READ, "list_containers:", first) == []
    second = Listed([container("a", 1), container("b")], ["c"])
    (entry,) = take(tape, Kind.READ, "list_containers:uid", second)
    assert [found["id"] for found in read_body(entry.body)["ok"]["entries"]] == ["a"]
    assert read_body(entry.body)["ok"]["gone"] == []
    (entry,) = take(tape, Kind.READ, "list_containers:", Listed([], ["b"]))
    assert read_body(entry.body)["ok"] == {"entries": [], "gone": ["b"]}
    (listed,) = [e for e in state(tape) if e.kind is Kind.READ]
    assert listed.key == "list_containers:"
    assert [found["id"] for found in read_body(listed.body)["ok"]["entries"]] == ["a"]


def test_a_list_that_failed_is_mended_by_one_without_news() -> None:
    tape = Tape(Variables())
    failure = (Failure("RuntimeUnavailableError", "down"),)
    assert len(take(tape, Kind.READ, "list_containers:", failure)) == 1
    assert take(tape, Kind.READ, "list_containers:", failure) == []
    (mended,) = take(tape, Kind.READ, "list_containers:", Listed([], []))
    assert read_body(mended.body)["ok"] == {"entries": [], "gone": []}
    assert take(tape, Kind.READ, "list_containers:", Listed([], [])) == []
    assert len(take(tape, Kind.READ, "list_containers:", failure)) == 1


def test_what_is_gone_leaves_nothing_behind() -> None:
    tape = Tape(Variables())
    take(tape, Kind.READ, "list_containers:", Listed([container("a")], []))
    take(tape, Kind.READ, "container_status:a", ({"status": v1.ContainerStatus(id="a")},))
    take(tape, Kind.READ, "exec_sync:a/1", ({"exit_code": 1},))
    take(tape, Kind.STATUS, "uid", PodStatus(phase="Running"))
    take(tape, Kind.PROBE, "uid/main/liveness", {"result": "success"})
    take(tape, Kind.PROBE, "uid2/main/liveness", {"result": "success"})
    take(tape, Kind.OBJECT, "Secret/default/a", pod("a"))
    take(tape, Kind.READ, "list_containers:", Listed([], ["a"]))
    take(tape, Kind.STATUS, "uid", None)
    assert take(tape, Kind.OBJECT, "Secret/default/a", FORGET) == []
    left = [entry.key for entry in state(tape) if entry.kind not in (Kind.START, Kind.SNAPSHOT)]
    assert left == ["r", "list_containers:", "uid2/main/liveness"]


def test_a_snapshot_that_does_not_fit_says_so() -> None:
    tape = Tape(Variables())
    for number in range(20):
        take(tape, Kind.WANTED, f"file/{number}", pod(f"pod-{number}"))
    whole = state(tape)
    assert whole[0].body == b"[1]"
    assert len(whole) == 23
    cut = state(tape, 1000)
    assert cut[0].body == b"[0]"
    assert (cut[0].kind, cut[-1].kind) == (Kind.START, Kind.SNAPSHOT)
    assert 3 < len(cut) < 23
