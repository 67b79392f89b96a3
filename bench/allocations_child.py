"""`python -m bench.allocations_child FILE COMMAND...`: `kubelet-trio COMMAND...` under memray.

memray notes every allocation from here on in FILE.capture. At the first SIGUSR2 it stops, and FILE
says that the capture is whole.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

_OWN = ("memray", "threading")  # the latter knows the main thread


def _import_memray() -> None:
    """Import memray, and forget all that it brings along: the agent imports its own, noted."""
    before = set(sys.modules)
    import memray  # noqa: F401

    for name in set(sys.modules) - before:
        # What is written in C is the same one, and not everything can be imported twice.
        has_source = getattr(sys.modules[name], "__file__", None) or ""
        if name.partition(".")[0] not in _OWN and has_source.endswith(".py"):
            del sys.modules[name]
    sys.modules["rich"] = None  # type: ignore[assignment]  # memray's; structlog would take it


def main() -> None:
    """Run the program."""
    _import_memray()
    import memray

    out = sys.argv[1]
    capture = memray.FileDestination(f"{out}.capture", overwrite=True)
    tracker = memray.Tracker(
        destination=capture,
        trace_python_allocators=True,
        file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS,
    )

    def stop(_number: int, _frame: FrameType | None) -> None:
        tracker.__exit__(None, None, None)
        Path(f"{out}.new").write_text("{}")
        Path(f"{out}.new").rename(out)

    signal.signal(signal.SIGUSR2, stop)
    sys.argv = ["kubelet-trio", *sys.argv[2:]]
    tracker.__enter__()
    from kubelet_trio.cli import main as run

    run()


if __name__ == "__main__":
    main()
