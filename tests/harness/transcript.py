"""Follows a page as a stranger does: from top to bottom, in a terminal, exactly as printed.

```sh blocks are typed in and must succeed. ```console blocks have `$ command` lines, and what they
print below: a command that only looks, typed again until it prints that. Blocks of other languages
are files, named by the comment in their first line.

In what is printed, columns may be of another width; times, sizes, percentages, dates, addresses and
long ids may be others; `...` stands for any lines, and within a line for any text.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.harness.machine import PATIENCE

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_FOLLOWED = ("text", "mermaid")
_TIME = r"\d+(?:\.\d+)?(?:ms|[smhd])(?:\d+[smh])?"
# In this order: what one has replaced, the next ones do not see.
_LOOSE = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*", "DATE"),
    (rf"{_TIME} \(x\d+ over {_TIME}\)", "TIME"),
    (rf"\d+ \({_TIME} ago\)", "RESTARTS"),
    (r"\b[0-9a-f]{12,}\b", "ID"),
    (r"\b\d+(?:\.\d+)? ?(?:[KMG]i?B?)\b", "SIZE"),
    (r"\b\d+(?:\.\d+)?%", "PERCENT"),
    (rf"\b{_TIME}\b", "TIME"),
    (r"\b\d+\.\d+\.\d+\.\d+\b", "ADDRESS"),
)


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The name in its first line, for a block that is a file."""
        found = re.match(r"# (\S+\.\w+)\n", self.text)
        assert found is not None, f"line {self.line}: the first line names no file"
        return found[1]

    def commands(self) -> Iterator[tuple[str, str]]:
        """Yield each command of a console, and what it is to print."""
        assert self.text.startswith("$ "), f"line {self.line}: a console begins with a command"
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed.rstrip("\n")


def blocks_of(page: Path, here: Iterable[tuple[str, str]] = ()) -> list[Block]:
    """Return the blocks to follow, in order, with the page's names and ports as they are `here`."""
    text = page.read_text()
    for name, own in here:
        text = text.replace(name, own)
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(text)
        if found[1] not in _NOT_FOLLOWED
    ]


def is_printed(expected: str, printed: str) -> bool:
    """Whether a command has printed what the page says."""
    pattern = "".join(map(_pattern_of, _loosen(expected)))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _loosen(printed))) is not None


def _loosen(text: str) -> list[str]:
    lines = []
    for raw in text.strip("\n").splitlines():
        line = " ".join(raw.split())
        for pattern, name in _LOOSE:
            line = re.sub(pattern, name, line)
        lines.append(line)
    return lines


def _pattern_of(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*"
    return ".*".join(map(re.escape, line.split("..."))) + r"\n"


class Terminal:
    """A shell that stays, so that `cd`, functions and jobs do."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._shell = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        self._count = 0

    def run(self, script: str, within: float = 60) -> str:
        """Type a script in and return what it prints; a command in it that fails is an error."""
        assert self._shell.stdin is not None
        self._count += 1
        mark = f"--- end of {self._count} ---"
        # Nobody answers questions; what is printed without an end of line is followed by ours.
        typed = f"{{ {script.rstrip()}\n}} </dev/null\necho; echo '{mark}'\n"
        self._shell.stdin.write(typed.encode())
        self._shell.stdin.flush()
        told = self._read(f"\n{mark}\n", time.monotonic() + within * PATIENCE)
        printed, ended, _ = told.partition(f"\n{mark}\n")
        assert ended, f"this did not go on to its end:\n{script}\n--- it printed:\n{printed}"
        return printed

    def _read(self, mark: str, deadline: float) -> str:
        assert self._shell.stdout is not None
        told = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._shell.stdout, selectors.EVENT_READ)
            while mark.encode() not in told and (left := deadline - time.monotonic()) > 0:
                if selector.select(left):
                    chunk = os.read(self._shell.stdout.fileno(), 1 << 16)
                    if not chunk:
                        break
                    told += chunk
        return told.decode(errors="replace")

    def close(self) -> None:
        """Hang up. What was started in the background may go on."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.stdout.close()
        self._shell.kill()
        self._shell.wait()


Run = Callable[[str], str]


def follow(block: Block, run: Run, write: Callable[[str, str], object]) -> None:
    """Do what a block says."""
    if block.language == "sh":
        run(block.text)
    elif block.language == "console":
        for command, printed in block.commands():
            _look(block, command, printed, run)
    else:
        write(block.file, block.text)


def _look(block: Block, command: str, expected: str, run: Run, within: float = 60) -> None:
    """Type a command that changes nothing until it prints what the page says."""
    deadline = time.monotonic() + within * PATIENCE
    while True:
        printed = run(f"set +e\n{command}\nset -e")
        if is_printed(expected, printed):
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.3)
    told = "\n".join(_loosen(printed))
    raise AssertionError(
        f"line {block.line}: $ {command}\n--- expected:\n{expected}\n--- printed:\n{printed}\n"
        f"--- compared as:\n{told}"
    )
