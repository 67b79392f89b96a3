"""What a test lets hang does no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.harness.hang import hang, resume

BUSY = """
import threading
for _ in range(4):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
print(flush=True)
threading.Event().wait()
"""


def states(pid: int) -> set[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks}


def test_no_thread_of_a_hanging_process_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            for _ in range(20):
                hang(busy.pid)
                assert states(busy.pid) == {"T"}
                resume(busy.pid)
            assert states(busy.pid) != {"T"}
        finally:
            busy.kill()
