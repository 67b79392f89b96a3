"""Two agents that share a lock file, each a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.running import LIMIT, daemon


def test_an_agent_makes_way_for_the_next_one(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    flags = (f"--lock-file={tmp_path}/lock", "--exit-on-lock-contention", "--healthz-port=0")
    with daemon(tmp_path / "first", *flags) as first:
        first.eventually(lambda: first.client.get("status"))
        with daemon(tmp_path / "second", *flags) as second:
            assert first.process.wait(LIMIT) == 0
            assert "lock_file.contended" in first.log.read_text()
            second.eventually(lambda: second.client.get("status"))
            assert second.terminate() == 0


def test_an_agent_waits_for_the_lock_and_can_be_stopped_meanwhile(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    flags = (f"--lock-file={tmp_path}/lock", "--healthz-port=0")
    with daemon(tmp_path / "first", *flags) as first:
        first.eventually(lambda: first.client.get("status"))
        with daemon(tmp_path / "second", *flags) as second:
            second.eventually(lambda: "lock_file.waiting" in second.log.read_text())
            assert second.terminate() == 0
            assert first.process.poll() is None
        assert first.terminate() == 0
