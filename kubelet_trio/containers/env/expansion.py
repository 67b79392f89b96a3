"""Expands `$(VAR)` in command, args, env values and subPathExpr.

`$(NAME)` becomes the value of NAME, or stays if NAME is not defined. `$$` becomes `$`, so
`$$(NAME)` yields the text `$(NAME)`. A `$` before another character and an unclosed `$(` are plain
text. Values are not expanded again.

Text and values come from a pod: the work is linear in both, and a result that is too long for any
command is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

# The longest single argument or variable of a program on Linux: MAX_ARG_STRLEN, execve(2).
MAX_VALUE = 128 * 1024
# All arguments and variables together: a quarter of the default stack limit of 8 MiB, execve(2).
MAX_VALUES = 2 * 1024 * 1024


def expand(text: str, lookup: Callable[[str], str | None], limit: int = MAX_VALUE) -> str:
    """Expand references; `lookup` returns None for an undefined name.

    Raises ValueError if the result has more than `limit` characters.
    """
    parts: list[str] = []
    size = 0
    for part in _parts(text, lookup):
        size += len(part)
        if size > limit:
            raise ValueError(f"expands to more than {limit} characters")
        parts.append(part)
    return "".join(parts)


def expand_from(text: str, variables: Mapping[str, str], limit: int = MAX_VALUE) -> str:
    """Expand references to the given variables. Raises ValueError as `expand` does."""
    return expand(text, variables.get, limit)


def _parts(text: str, lookup: Callable[[str], str | None]) -> Iterator[str]:
    """Yield the pieces that the expanded text consists of."""
    start = 0
    # No opening after this is closed. Knowing it keeps a text of many `$(` linear.
    last_close = text.rfind(")")
    while 0 <= (dollar := text.find("$", start)) < len(text) - 1:
        yield text[start:dollar]
        following = text[dollar + 1]
        start = dollar + 2
        if following == "$":
            yield "$"
        elif following == "(" and start <= last_close:
            end = text.index(")", start)
            name = text[start:end]
            value = lookup(name)
            yield f"$({name})" if value is None else value
            start = end + 1
        else:
            yield f"${following}"
    yield text[start:]
