"""What is fuzzed, and what must hold of it whatever comes.

A target takes bytes. What it raises is what its room documents; what it returns and says is in
proportion to what it was given; and it ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import trio
from trio.testing import MockClock

from tests.fuzz.mutate import Bytes
from tests.harness.hostile import no_hang

_T = TypeVar("_T")

SECONDS = 60.0  # for one example; real ones take milliseconds
_VIRTUAL = 1e6  # s, by which whatever waits for a peer has given up
_TEXT = 8 * 1024  # characters of an error beside those it quotes


@dataclass(frozen=True)
class Target:
    """One reader of foreign bytes."""

    name: str
    run: Callable[[bytes], object]
    examples: Sequence[bytes]  # good ones: `run` takes them without an error
    strategy: Bytes
    errors: tuple[type[Exception], ...] = ()
    per_byte: int = 16  # of the answer's weight
    most: int = 64 * 1024  # beside what is in proportion


def examine(target: Target, data: bytes) -> None:
    """Fail where a target does with these bytes what it must not."""
    with no_hang(SECONDS):
        try:
            answer = target.run(data)
        except target.errors as exc:
            said = len(str(exc))
            assert said <= 4 * len(data) + _TEXT, f"an error of {said} characters"
            return
    heavy = weight(answer)
    assert heavy <= target.per_byte * len(data) + target.most, f"an answer of {heavy}"


def weight(answer: object) -> int:
    """Return how large a value is: its texts' lengths and the number of its parts."""
    total, waiting = 0, [answer]
    while waiting:
        value: Any = waiting.pop()
        total += 1
        if isinstance(value, str | bytes | bytearray):
            total += len(value)
        elif isinstance(value, Mapping):
            waiting += value
            waiting += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif hasattr(value, "__struct_fields__"):
            parts = (getattr(value, name) for name in value.__struct_fields__)
            waiting += [part for part in parts if part is not None]
        elif dataclasses.is_dataclass(value):
            waiting += [getattr(value, field.name) for field in dataclasses.fields(value)]
    return total


def in_trio(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run `work` in virtual time; what waits for ever fails."""

    async def main() -> _T:
        with trio.fail_after(_VIRTUAL):
            return await work()

    return trio.run(main, clock=MockClock(autojump_threshold=0))
