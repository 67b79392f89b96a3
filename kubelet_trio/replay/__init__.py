"""Replay recordings of the flight recorder: the whole agent in virtual time, off any machine."""

from kubelet_trio.recorder import RecordingError
from kubelet_trio.replay.run import TOLERANCE, replay_recording
from kubelet_trio.replay.types import Decision, Divergence, Replay, ReplayDivergedError

__all__ = [
    "TOLERANCE",
    "Decision",
    "Divergence",
    "RecordingError",
    "Replay",
    "ReplayDivergedError",
    "replay_recording",
]
