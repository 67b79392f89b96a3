"""What a machine's files may raise."""

from __future__ import annotations


class TopologyError(Exception):
    """The machine's topology cannot be read; the text names the file and what is wrong with it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"cannot read the machine's topology: /{path}: {problem}")
        self.path = path
