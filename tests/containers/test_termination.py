from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from kubelet_trio.containers import (
    cut_message,
    make_termination_log,
    message_limit,
    read_termination_message,
)
from kubelet_trio.containers.labels import TERMINATION_MESSAGE_POLICY
from kubelet_trio.containers.logs.cri_log import format_line
from kubelet_trio.model import ContainerId, ContainerRecord, ContainerState, SandboxId
from tests.containers.make import container, pod

TIME = "2024-05-01T10:00:00.123456789Z"
ENDED = ContainerRecord(
    id=ContainerId("c"),
    name="main",
    sandbox_id=SandboxId("s"),
    state=ContainerState.EXITED,
    attempt=0,
    created_at=0.0,
    exit_code=1,
)
FALLBACK = replace(ENDED, annotations={TERMINATION_MESSAGE_POLICY: "FallbackToLogsOnError"})


def write_log(path: Path, *lines: bytes) -> str:
    path.write_bytes(b"".join(format_line(TIME, "stdout", line) for line in lines))
    return str(path)


def test_a_new_file_for_each_instance_that_anyone_may_write(tmp_path: Path) -> None:
    one, two = (make_termination_log(tmp_path, "main") for _ in range(2))
    assert one != two
    assert one.parent == tmp_path / "containers" / "main"
    assert len(one.name) == 8
    assert stat.S_IMODE(one.stat().st_mode) == 0o666


def test_the_last_4096_bytes_of_the_file_are_the_message(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"x" * 100 + b"y" * 4096)
    record = replace(ENDED, termination_message_path=str(path))
    assert read_termination_message(record) == "y" * 4096


def test_without_a_fallback_an_empty_file_is_no_message(tmp_path: Path) -> None:
    log = write_log(tmp_path / "0.log", b"last words")
    assert read_termination_message(replace(ENDED, log_path=log)) == ""


def test_an_empty_file_of_a_failed_container_falls_back_to_its_log(tmp_path: Path) -> None:
    (tmp_path / "m").touch()
    log = write_log(tmp_path / "0.log", b"one", b"two")
    record = replace(FALLBACK, log_path=log, termination_message_path=str(tmp_path / "m"))
    assert read_termination_message(record) == "one\ntwo\n"
    gone = replace(record, termination_message_path=str(tmp_path / "gone"))
    assert read_termination_message(gone) == "one\ntwo\n"
    (tmp_path / "m").write_text("own")
    assert read_termination_message(record) == "own"


def test_the_spec_says_the_policy_where_the_record_does_not(tmp_path: Path) -> None:
    record = replace(ENDED, log_path=write_log(tmp_path / "0.log", b"x"))
    spec = container(terminationMessagePolicy="FallbackToLogsOnError")
    assert read_termination_message(record, spec) == "x\n"


@pytest.mark.parametrize("change", [{"exit_code": 0}, {"reason": "ContainerCannotRun"}])
def test_only_a_failure_after_the_start_falls_back(tmp_path: Path, change: dict[str, str]) -> None:
    log = write_log(tmp_path / "0.log", b"x")
    record = replace(FALLBACK, log_path=log, **change)  # type: ignore[arg-type]
    assert read_termination_message(record) == ""


def test_the_fallback_is_80_lines_and_2048_bytes(tmp_path: Path) -> None:
    log = write_log(tmp_path / "0.log", *(f"line {n}".encode() for n in range(100)))
    message = read_termination_message(replace(FALLBACK, log_path=log))
    assert message.splitlines() == [f"line {n}" for n in range(20, 100)]
    long = write_log(tmp_path / "1.log", b"a" * 5000)
    assert read_termination_message(replace(FALLBACK, log_path=long)) == "a" * 2047 + "\n"


def test_a_log_that_is_gone_says_so(tmp_path: Path) -> None:
    record = replace(FALLBACK, log_path=str(tmp_path / "0.log"))
    assert read_termination_message(record) == (
        "Error on reading termination message from logs: No such file or directory"
    )


def test_what_is_no_regular_file_does_not_hold_us_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m")
    record = replace(ENDED, termination_message_path=str(tmp_path / "m"))
    assert "expected a file, found a FIFO" in read_termination_message(record)
    with_directory = replace(ENDED, termination_message_path=str(tmp_path))
    assert "Error on reading termination log" in read_termination_message(with_directory)


def test_containers_share_twelve_kibibytes() -> None:
    assert message_limit(pod()) == 12288
    three = pod(container("a"), container("b"), initContainers=[container("c")])
    assert message_limit(three) == 4096


def test_a_message_is_cut_between_characters() -> None:
    assert cut_message("abc", 3) == "abc"
    assert cut_message("aé", 2) == "a"
