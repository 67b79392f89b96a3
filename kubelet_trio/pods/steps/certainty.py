"""Whether the runtime can have more of a pod than was observed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Certainty:
    """Whether the worker's own observations show all that the runtime has of a pod.

    They do if this agent made every call for the pod, got every answer, and read what each call
    has changed. A call of an earlier agent, or one that failed or was cut short, may take effect
    late: from then on only a listing shows everything.
    """

    def __init__(self) -> None:
        """Begin uncertain."""
        self.is_complete = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make calls in the block; if an exception ends it, the result stays uncertain."""
        was, self.is_complete = self.is_complete, False
        yield
        self.is_complete = was  # not in a `finally`: see above
