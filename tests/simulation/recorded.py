"""The recording of a failure: `kubelet-trio replay` takes it, as that of a node.

Only hypothesis' last run of an example that fails is kept. All are recorded: a run must not depend
on whether it is the last one, and the recorder's tasks take part in the scheduler's draws.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import note
from hypothesis.control import current_build_context
from hypothesis.errors import InvalidArgument

from kubelet_trio.recorder import write_recording
from tests.simulation.world import World

SIZE = 64 << 20  # bytes
_DIRECTORY = "KUBELET_TRIO_SIMULATION_RECORDINGS"  # where they go; else where temporary files go


class Recorded:
    """Records a world's agents, and keeps that if its run is the one that is reported."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.path: Path | None = None
        world.recorder_size = SIZE
        world.keeps_recording = _is_reported()

    def save(self) -> None:
        """Write the recording and say where it is; nothing if nothing was recorded."""
        if not self._world.keeps_recording:
            return
        handle, name = tempfile.mkstemp(
            prefix="kubelet-trio-simulation-", suffix=".rec", dir=os.environ.get(_DIRECTORY)
        )
        os.close(handle)
        self.path = Path(name)
        write_recording(self.path, self._world.recording())
        note(f"Recorded: kubelet-trio replay {self.path}")


def _is_reported() -> bool:
    try:
        return bool(current_build_context().is_final)
    except InvalidArgument:  # outside of hypothesis
        return False
