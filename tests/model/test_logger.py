"""Who logs where, in programs that have set structlog up and in those that have not."""

from __future__ import annotations

import subprocess
import sys

import structlog
from structlog.testing import capture_logs

from kubelet_trio.model import get_logger

_CRASH = """
from kubelet_trio.model import get_logger
log = get_logger()
log.info("pod.started")
secret = "hunter2"
try:
    raise ValueError("a bug")
except ValueError:
    log.warning("task.crashed", pod="default/web", exc_info=True)
"""
_SET_UP = """
import structlog
structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
log.info("pod.ended")
"""


def _run(code: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_a_program_that_says_nothing_has_warnings_on_stderr_and_no_local_variables() -> None:
    out, err = _run(_CRASH)
    assert out == ""
    assert "event='task.crashed' pod='default/web'" in err
    assert "ValueError: a bug" in err
    assert "pod.started" not in err
    assert "hunter2" not in err


def test_a_program_that_sets_structlog_up_later_has_what_it_asks_for() -> None:
    out, err = _run(_CRASH + _SET_UP)
    assert out == "event='pod.ended'\n"
    assert "pod.ended" not in err


def test_what_captures_structlogs_events_has_these_too() -> None:
    assert structlog.is_configured()
    with capture_logs() as told:
        get_logger().info("pod.started", pod="a")
    assert told == [{"event": "pod.started", "pod": "a", "log_level": "info"}]
