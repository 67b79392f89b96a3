"""What a crash or a reboot leaves on disk, and what the next agent makes of it."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from kubelet_trio.cri import ProcessRuntime, v1
from kubelet_trio.cri.process import process_state
from kubelet_trio.cri.process.shim import protocol
from kubelet_trio.cri.process.shim.files import fill_json, reserve, write_json
from tests.conformance.cases import FOREVER, Box, exits
from tests.cri.process.conftest import ProcessCase

NOT_READY = v1.PodSandboxState.SANDBOX_NOTREADY
READY = v1.PodSandboxState.SANDBOX_READY


def state_dir(case: ProcessCase) -> Path:
    return case.logs / "root" / "process-runtime"


async def test_what_is_half_made_or_half_removed_is_cleared_away(
    case: ProcessCase, box: Box
) -> None:
    kept = await box.create(FOREVER, "kept")
    damaged = await box.create(FOREVER, "damaged")
    (state_dir(case) / "begun").mkdir()
    (state_dir(case) / box.id / "begun" / "work").mkdir(parents=True)
    (state_dir(case) / box.id / damaged / "container.json").write_bytes(b"{")
    other = ProcessRuntime(case.logs / "root")
    assert (await other.list_containers()).entries.keys() == {kept}
    assert (await other.list_pod_sandboxes()).entries.keys() == {box.id}
    assert {p.name for p in state_dir(case).iterdir() if p.is_dir()} == {box.id}
    assert {p.name for p in (state_dir(case) / box.id).iterdir() if p.is_dir()} == {kept}


@pytest.mark.parametrize("name", [protocol.SHIM, protocol.EXIT])
def test_a_file_of_a_shim_that_is_no_text_counts_as_none(tmp_path: Path, name: str) -> None:
    (tmp_path / protocol.EXIT).write_bytes(b'{"code": 3, "finished_at": 1}')
    (tmp_path / name).write_bytes(b'{"reason": "\xff"}')
    state = process_state.read_process_state(tmp_path, "0" * 64, "boot")
    assert (state.state, state.exit_code) in {(process_state.EXITED, 3), (process_state.CREATED, 0)}


async def test_after_a_reboot_nothing_runs(
    case: ProcessCase, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, running = await box.start(exits(3), "ended"), await box.start(FOREVER, "running")
    await case.wait_exited(ended)
    await case.runtime.remove_container(await box.create(FOREVER, "gone"))
    with monkeypatch.context() as rebooted:
        rebooted.setattr(process_state, "boot_id", lambda: "another")
        # Its PID may be somebody else's by now; here it stays what it was.
        rebooted.setattr(process_state, "kill_marked", lambda _id: None)
        later = ProcessRuntime(case.logs / "root")
        assert (await later.pod_sandbox_status(box.id)).state == NOT_READY
        statuses = [(await later.container_status(c))[0] for c in (ended, running)]
        assert [(s.exit_code, s.reason) for s in statuses] == [(3, "Error"), (255, "Unknown")]
        assert statuses[1].finished_at > 0
    (state_dir(case) / box.id / running / protocol.EXIT).unlink()


async def test_a_number_that_has_become_another_process_is_not_the_shim(
    case: ProcessCase, box: Box
) -> None:
    container_id = await box.start(exits(0))
    await case.wait_exited(container_id)
    directory = state_dir(case) / box.id / container_id
    told = (directory / protocol.SHIM).read_text()
    assert (
        process_state.read_process_state(directory, container_id, process_state.boot_id()).exit_code
        == 0
    )
    (directory / protocol.EXIT).unlink()
    # PID 1 lives, and began at another time.
    text = told.replace(told.split('"shim": ')[1].split(",")[0], "1", 1)
    (directory / protocol.SHIM).write_text(text)
    state = process_state.read_process_state(directory, container_id, process_state.boot_id())
    assert (state.exit_code, state.reason) == (255, "Unknown")


async def test_an_end_that_was_cut_short_by_a_crash_is_unknown(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(exits(0))
    await case.wait_exited(container_id)
    directory = state_dir(case) / box.id / container_id
    (directory / protocol.EXIT).write_bytes(b"")
    later = ProcessRuntime(case.logs / "root")
    assert (await later.container_status(container_id))[0].exit_code == 255


@pytest.mark.skipif(os.getuid() != 0, reason="mounts need root")
def test_what_room_was_taken_for_is_written_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        with monkeypatch.context() as inside:
            inside.chdir(tmp_path)
            room = reserve(protocol.EXIT)
            with open("ballast", "wb", buffering=0) as file, suppress(OSError):
                while file.write(b"0" * 4096):
                    pass
            with pytest.raises(OSError, match="No space left"):
                write_json("other", {"code": 3})
            fill_json(room, protocol.EXIT, {"code": 3, "finished_at": 1})
            ended = process_state._read_exit(tmp_path)
        assert ended is not None
        assert (ended.code, ended.finished_at) == (3, 1)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


async def test_what_holds_secrets_is_ours_alone(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(FOREVER)
    directory = state_dir(case) / box.id / container_id
    for name in ("spec.json", "container.pb", "container.json", "shim.json", "control"):
        assert (directory / name).stat().st_mode & 0o077 == 0, name
    for place in (directory, directory.parent, directory.parent.parent):
        assert place.stat().st_mode & 0o777 == 0o711


async def test_nothing_is_read_or_made_before_the_first_call(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert (await runtime.list_containers()).entries == {}
    assert (tmp_path / "none" / "process-runtime").is_dir()
